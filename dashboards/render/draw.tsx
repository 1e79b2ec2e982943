// Draws what render.mjs has fetched, with Grafana's components for all but timelines and events.

import "uplot/dist/uPlot.min.css";

import { createTheme, dateTime, ThemeContext } from "@grafana/data";
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueJustifyMode,
  GlobalStyles,
  PanelChrome,
  TimeSeries,
} from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";

import { frames, type Panel, type Series } from "./fields";
import { Timeline } from "./timeline";

interface Event {
  name: string;
  color: string;
  times: number[];
}

interface Picture {
  title: string;
  panels: { panel: Panel; series: Series[] }[];
  events: Event[];
  from: number;
  to: number;
  step: number;
  width: number;
  line: number;
}

const picture: Picture = (window as any).picture;
const theme = createTheme({ colors: { mode: "dark" } });
const range = {
  from: dateTime(1000 * picture.from),
  to: dateTime(1000 * picture.to),
  raw: { from: "", to: "" },
};

/** A hook for the plot: a line for each event. Ours; Grafana's are drawn by its application. */
function drawEvents(plot: any) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([6, 4]);
  for (const { color, times } of picture.events) {
    ctx.strokeStyle = theme.visualization.getColorByName(color);
    for (const seconds of times) {
      const x = plot.valToPos(1000 * seconds, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

function Content({ panel, series, width, height }: any) {
  const data = frames(panel, series, picture.step, theme);
  if (!data.length) return <div>No data</div>;
  if (panel.type === "timeseries") {
    return (
      <TimeSeries
        frames={data}
        timeRange={range as any}
        timeZone="utc"
        width={width}
        height={height}
        legend={panel.options.legend}
        structureRev={1}
      >
        {(config: any) => {
          config.addHook("draw", drawEvents);
          return null;
        }}
      </TimeSeries>
    );
  }
  if (panel.type === "stat") {
    const values = data[0].fields[1];
    return (
      <BigValue
        width={width}
        height={height}
        theme={theme}
        value={values.display!(values.values[values.values.length - 1])}
        colorMode={BigValueColorMode.Background}
        graphMode={BigValueGraphMode.None}
        justifyMode={BigValueJustifyMode.Auto}
      />
    );
  }
  if (panel.type === "state-timeline") {
    const { from, to } = picture;
    return <Timeline frames={data} from={from} to={to} width={width} height={height} />;
  }
  return <div>A {panel.type} is not drawn here.</div>;
}

function Cell({ panel, series }: { panel: Panel; series: Series[] }) {
  const { x, y, w, h } = panel.gridPos;
  const column = picture.width / 24;
  const place = {
    position: "absolute" as const,
    left: x * column + 4,
    top: (y + 2) * picture.line + 4,
  };
  const [width, height] = [w * column - 8, h * picture.line - 8];
  if (panel.type === "row") {
    return <h4 style={{ ...place, color: theme.colors.text.primary }}>{panel.title}</h4>;
  }
  return (
    <div style={place}>
      <PanelChrome title={panel.title} width={width} height={height}>
        {(innerWidth: number, innerHeight: number) => (
          <Content panel={panel} series={series} width={innerWidth} height={innerHeight} />
        )}
      </PanelChrome>
    </div>
  );
}

/** What the coloured lines in all graphs are. */
function Legend() {
  return (
    <div style={{ position: "absolute", right: 16, top: 20 }}>
      {picture.events
        .filter(({ times }) => times.length)
        .map(({ name, color, times }) => (
          <span
            key={name}
            style={{ marginLeft: 16, color: theme.visualization.getColorByName(color) }}
          >
            ┆ {name} ({times.length})
          </span>
        ))}
    </div>
  );
}

createRoot(document.getElementById("root")!).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <h3 style={{ margin: 16, color: theme.colors.text.primary }}>{picture.title}</h3>
    <Legend />
    {picture.panels.map(({ panel, series }) => (
      <Cell key={panel.title + panel.type} panel={panel} series={series} />
    ))}
  </ThemeContext.Provider>,
);
