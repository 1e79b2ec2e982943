// From series to the frames that Grafana's components draw.

import {
  createDataFrame,
  type DataFrame,
  type Field,
  FieldType,
  getDisplayProcessor,
  type GrafanaTheme2,
} from "@grafana/data";

export interface Series {
  name: string;
  points: [number, number][];
}

export interface Panel {
  type: string;
  title: string;
  description: string;
  gridPos: { x: number; y: number; w: number; h: number };
  fieldConfig: { defaults: any; overrides?: any[] };
  options: any;
}

/** Look of one series: the defaults of the panel, then the overrides by name, in order. */
function configOf(panel: Panel, name: string): any {
  const config = structuredClone(panel.fieldConfig.defaults);
  config.color ??= { mode: panel.type === "timeseries" ? "palette-classic" : "thresholds" };
  config.custom ??= {};
  config.displayName = name;
  for (const { matcher, properties } of panel.fieldConfig.overrides ?? []) {
    if (!new RegExp(matcher.options.slice(1, -1)).test(name)) continue;
    for (const { id, value } of properties) {
      if (id.startsWith("custom.")) config.custom[id.slice("custom.".length)] = value;
      else config[id] = value;
    }
  }
  return config;
}

type Point = [number, number | null];

/** As Grafana's panel has it: where points are missing, the line is interrupted. */
function interrupted(points: Point[], stepSeconds: number): Point[] {
  return points.flatMap(([seconds, value], index): Point[] => {
    const before = index ? points[index - 1][0] : seconds;
    const gap: Point[] = seconds - before > stepSeconds ? [[before + stepSeconds, null]] : [];
    return [...gap, [seconds, Number.isNaN(value) ? null : value]];
  });
}

/** One frame a series, with Grafana's own way of writing its values. */
export function frames(
  panel: Panel,
  series: Series[],
  stepSeconds: number,
  theme: GrafanaTheme2,
): DataFrame[] {
  return series.map(({ name, points: found }, seriesIndex) => {
    const points = interrupted(found, stepSeconds);
    const frame = createDataFrame({
      fields: [
        { name: "Time", type: FieldType.time, values: points.map(([seconds]) => 1000 * seconds) },
        {
          name,
          type: FieldType.number,
          config: configOf(panel, name),
          values: points.map(([, value]) => value),
        },
      ],
    });
    const field: Field = frame.fields[1];
    field.state = { seriesIndex, displayName: name };
    for (const each of frame.fields) {
      each.display = getDisplayProcessor({ field: each, theme, timeZone: "utc" });
    }
    return frame;
  });
}
