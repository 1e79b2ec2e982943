// States over time. Grafana's own panel for it is not among its published components: the bars
// are ours, their texts and colours come from Grafana's display processor.

import { type DataFrame } from "@grafana/data";
import React from "react";

interface Props {
  frames: DataFrame[];
  from: number;
  to: number;
  width: number;
  height: number;
}

const LABEL_PIXELS = 150;

export function Timeline({ frames, from, to, width, height }: Props) {
  const rowHeight = Math.min(34, (height - 20) / Math.max(1, frames.length));
  const place = (seconds: number) =>
    LABEL_PIXELS + ((seconds - from) / (to - from)) * (width - LABEL_PIXELS);
  return (
    <svg width={width} height={height} fontFamily="sans-serif" fontSize={12}>
      {frames.map((frame, row) => {
        const [times, states] = frame.fields;
        return (
          <g key={row} transform={`translate(0 ${row * (rowHeight + 4)})`}>
            <text x={0} y={rowHeight / 2 + 4} fill="#ccccdc">
              {states.state?.displayName}
            </text>
            {runs(states.values).map(([start, end]) => {
              const shown = states.display!(states.values[start]);
              const x = place(times.values[start] / 1000);
              const last = end < times.values.length ? times.values[end] / 1000 : to;
              const long = place(last) - x;
              return (
                <g key={start}>
                  <rect x={x} width={Math.max(1, long)} height={rowHeight} fill={shown.color} />
                  {long > 60 && (
                    <text x={x + 6} y={rowHeight / 2 + 4} fill="#111217">
                      {shown.text}
                    </text>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
    </svg>
  );
}

/** Begin and end of each stretch of the same value. */
function runs(values: ArrayLike<number>): [number, number][] {
  const found: [number, number][] = [];
  for (let index = 0; index < values.length; index++) {
    if (index && values[index] === values[index - 1]) found[found.length - 1][1] = index + 1;
    else found.push([index, index + 1]);
  }
  return found;
}
