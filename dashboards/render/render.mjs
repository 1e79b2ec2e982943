// Draws a dashboard of ours into a picture:
//   node render.mjs ../json/plimsoll-vram-to-oom.json --prometheus http://127.0.0.1:9090 \
//     --from 1764550000 --to 1764551000 --out picture.png
// Further: --scrape-seconds 1, --pod REGEX, --namespace REGEX, --model REGEX, --rows "A,B" (only
// these), --chromium PATH. Exit status 1 if a panel has no data, with its title.

import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import { build } from "esbuild";

import { eventTimes, panelData, scope } from "./query.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const WIDTH_PIXELS = 1600;
const LINE_PIXELS = 36;

const text = (fallback) => ({ type: "string", default: fallback });
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    prometheus: text("http://127.0.0.1:9090"),
    from: text(String(Date.now() / 1000 - 3600)),
    to: text(String(Date.now() / 1000)),
    out: text("dashboard.png"),
    rows: text(""),
    chromium: text("chromium"),
    "scrape-seconds": text("15"),
    namespace: text(".*"),
    model: text(".*"),
    pod: text(".*"),
  },
});

/** Panels of the wanted rows, moved up to where the rows before them are missing. */
function chosen(panels, wanted) {
  const kept = [];
  let shift = 0;
  let keep = true;
  panels.forEach((panel, index) => {
    if (panel.type === "row") {
      keep = !wanted.length || wanted.includes(panel.title);
      if (!keep) {
        const next = panels.slice(index + 1).find((later) => later.type === "row");
        shift += (next?.gridPos.y ?? Infinity) - panel.gridPos.y;
      }
    }
    if (keep) kept.push({ ...panel, gridPos: { ...panel.gridPos, y: panel.gridPos.y - shift } });
  });
  return kept;
}

const dashboard = JSON.parse(readFileSync(positionals[0], "utf8"));
const { namespace, model, pod } = options;
const common = scope(
  options.prometheus,
  Number(options.from),
  Number(options.to),
  Number(options["scrape-seconds"]),
  { namespace, model, pod },
);
const rows = options.rows ? options.rows.split(",") : [];
const panels = await Promise.all(
  chosen(dashboard.panels, rows).map(async (panel) => ({
    panel,
    series: panel.type === "row" ? [] : await panelData(common, panel),
  })),
);
const events = await Promise.all(
  dashboard.annotations.list.map(async ({ name, iconColor, ...annotation }) => ({
    name,
    color: iconColor,
    times: await eventTimes(common, annotation),
  })),
);
const height = Math.max(...panels.map(({ panel: { gridPos } }) => gridPos.y + gridPos.h));

const folder = mkdtempSync(join(tmpdir(), "plimsoll-render-"));
try {
  await build({
    entryPoints: [join(here, "draw.tsx")],
    outfile: join(folder, "draw.js"),
    bundle: true,
    define: { "process.env.NODE_ENV": '"production"', global: "window" },
    // The other build of these packages trips over esbuild's idea of what Node imports.
    alias: {
      "@grafana/ui": join(here, "node_modules/@grafana/ui/dist/cjs/index.cjs"),
      "@grafana/data": join(here, "node_modules/@grafana/data/dist/cjs/index.cjs"),
    },
    loader: { ".svg": "dataurl", ".png": "dataurl", ".ttf": "dataurl" },
    logLevel: "error",
  });
  const { from, to, step } = common;
  const picture = { title: dashboard.title, panels, events, from, to, step };
  const data = JSON.stringify({ ...picture, width: WIDTH_PIXELS, line: LINE_PIXELS });
  writeFileSync(
    join(folder, "index.html"),
    `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="draw.css"><body style="margin:0"><div id="root"></div>
<script>window.picture = ${data.replaceAll("<", "\\u003c")};</script><script src="draw.js"></script>`,
  );
  execFileSync(
    options.chromium,
    [
      ...["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
      ...[`--user-data-dir=${join(folder, "profile")}`, "--virtual-time-budget=10000"],
      `--window-size=${WIDTH_PIXELS},${(height + 2) * LINE_PIXELS}`,
      `--screenshot=${resolve(options.out)}`,
      `file://${join(folder, "index.html")}`,
    ],
    { stdio: ["ignore", "ignore", "pipe"] },
  );
} finally {
  rmSync(folder, { recursive: true, force: true });
}

const empty = panels.filter(({ panel, series }) => panel.type !== "row" && !series.length);
for (const { panel } of empty) console.error(`no data: ${panel.title}`);
process.exitCode = empty.length ? 1 : 0;
