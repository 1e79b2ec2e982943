// From a dashboard and a Prometheus to the data of each panel. Ours, not Grafana's data source:
// it knows $__rate_interval, the variables of our dashboards, and names from labels.

const POINTS = 400;

/** What the queries of one picture have in common; times are Unix seconds. */
export function scope(url, from, to, scrapeSeconds, variables) {
  const step = Math.max(scrapeSeconds, Math.ceil((to - from) / POINTS));
  // As Grafana has it: long enough for two samples however far one zooms in.
  const rateSeconds = Math.max(step + scrapeSeconds, 4 * scrapeSeconds);
  return { url, from, to, step, rateSeconds, variables };
}

export function interpolate(expr, { rateSeconds, variables }) {
  const known = { ...variables, __rate_interval: `${rateSeconds}s` };
  return expr.replace(/\$(\w+)/g, (_, name) => {
    if (!(name in known)) throw new Error(`unknown variable $${name} in ${expr}`);
    return known[name];
  });
}

export function seriesName(legend, labels) {
  return legend.replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? "").trim();
}

/** Series over time, each a name and [seconds, value] pairs. */
export async function ask(scope, expr, legend) {
  const parameters = new URLSearchParams({
    query: interpolate(expr, scope),
    start: scope.from,
    end: scope.to,
    step: scope.step,
  });
  const response = await fetch(`${scope.url}/api/v1/query_range`, {
    method: "POST",
    body: parameters,
  });
  const answer = await response.json();
  if (answer.status !== "success") throw new Error(`${answer.error} in ${expr}`);
  return answer.data.result.map(({ metric, values }) => ({
    name: seriesName(legend, metric),
    points: values.map(([seconds, value]) => [seconds, Number(value)]),
  }));
}

/** Data of a panel: of a panel that shows the present, the last point alone. */
export async function panelData(scope, panel) {
  const answers = await Promise.all(
    panel.targets.map(async (target) => {
      const at = target.instant ? { ...scope, from: scope.to } : scope;
      return ask(at, target.expr, target.legendFormat);
    }),
  );
  return answers.flat();
}

/** Times of the events of a dashboard: where a series is above 0, or what its value says. */
export async function eventTimes(scope, annotation) {
  const series = await ask(scope, annotation.expr, annotation.titleFormat);
  const times = series.flatMap(({ points }) =>
    points
      .filter(([, value]) => value > 0)
      .map(([seconds, value]) => (annotation.useValueForTime ? value / 1000 : seconds)),
  );
  const inRange = [...new Set(times)].filter((time) => time >= scope.from && time <= scope.to);
  inRange.sort((one, other) => one - other);
  // Neighbours are one event.
  return inRange.filter((time, index) => !index || time - inRange[index - 1] > scope.step);
}
