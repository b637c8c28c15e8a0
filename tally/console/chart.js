/** Draws charts with uPlot: the bars of a series, large with axes or small without. The style sheet has the colours. */

import { count, DAY_S, HOUR_S, inUtc, number, short, signed, sumOf, timeText } from "./format.js";
import { make } from "./parts.js";
import uPlot from "./uPlot.esm.js";

const GRID_STEPS = Array.from({ length: 40 }, (_, index) => [1, 2, 5][index % 3] * 10 ** Math.floor(index / 3)); // 1, 2, 5, 10, …: no fractions
const charts = new Set(); // the charts of the page

/** Calls `change` with each chart of the page. Destroys the charts of pages that were left. */
function everyChart(change) {
  for (const chart of charts) chart.root.isConnected ? change(chart) : (chart.destroy(), charts.delete(chart));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => everyChart((chart) => chart.redraw()));
const sizes = new ResizeObserver((changed) => {
  for (const { target, contentRect } of changed)
    everyChart(
      (chart) => chart.root.parentElement === target && chart.setSize({ width: contentRect.width, height: chart.height }),
    );
});

const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isMidnight = (at) => !(inUtc() ? new Date(at * 1000).getUTCHours() : new Date(at * 1000).getHours());

/**
 * Draws the bars of a series. `points`: `[{from, value}]`. `by`: hour or day. `asOf`: the time up to which the series is
 * known; a bar that ends later is drawn lighter. `from`: where the chart begins, if that is before the first bar.
 * `repairs`: `[{at, value}]`, marked above the bars. `small`: without axes. `hovered(point)`: follows the pointer.
 */
export function bars(points, { by = "hour", asOf = null, from, repairs = [], small = false, hovered } = {}) {
  const length = by === "hour" ? HOUR_S : DAY_S;
  const isRunning = (index) => asOf !== null && index === points.length - 1 && asOf < points[index].from + length;
  const only = (running) => points.map((point, index) => (isRunning(index) === running ? point.value : null));
  const data = [points.map((point) => point.from), only(false), only(true)];
  const series = (stroke, fill) => ({
    stroke: colour(stroke),
    fill: colour(fill),
    width: 1,
    points: { show: false },
    paths: uPlot.paths.bars({ size: [small ? 0.7 : 0.8, 48], align: 1, radius: 0.12 }),
  });
  const root = make(small ? "div.spark" : "div.chart", { role: "img", "aria-label": inWords(points, by) });
  const options = {
    width: 300,
    height: small ? 56 : 260,
    padding: small ? [2, 0, 0, 0] : [18, 8, 0, 0],
    tzDate: (at) => (inUtc() ? uPlot.tzDate(new Date(at * 1000), "UTC") : new Date(at * 1000)),
    legend: { show: false },
    cursor: small ? { show: false } : { y: false, points: { show: false }, drag: { setScale: false } },
    scales: {
      x: { range: () => [Math.min(from ?? Infinity, points[0].from), points.at(-1).from + length] },
      y: { range: (_, low, high) => [Math.min(0, low * 1.1), Math.max(1, high * 1.1)] },
    },
    axes: small ? [{ show: false }, { show: false }] : axes(by),
    series: [{}, series("--accent", "--accent"), series("--accent", "--accent-soft")],
    hooks: small
      ? {}
      : { draw: [(plot) => drawRepairs(plot, repairs)], setCursor: [(plot) => hovered?.(points[plot.cursor.idx] ?? null)] },
  };
  const plot = new uPlot(options, data, root);
  charts.add(plot);
  sizes.observe(root);
  return root;
}

/** Returns uPlot's axes: times below, values at the left. `incrs`: the gaps between two labels. */
function axes(by) {
  const ink = { stroke: colour("--muted"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const words = (plot, splits) =>
    splits.map((at) => (at >= plot.scales.x.max ? "" : timeText(at, by === "day" || isMidnight(at) ? "date" : "hours")));
  return [
    {
      ...ink,
      grid: { show: false },
      size: 28,
      values: words,
      space: 52,
      incrs: [1, 2, 3, 4, 6, 12, 24, 48, 120, 240, 744]
        .map((hours) => hours * HOUR_S)
        .filter((gap) => by === "hour" || gap >= DAY_S),
    },
    {
      ...ink,
      grid: { stroke: colour("--line"), width: 1 },
      size: 44,
      incrs: GRID_STEPS,
      values: (_, splits) => splits.map(short),
    },
  ];
}

/** Draws a diamond above the bars for each repair, at its time. */
function drawRepairs(plot, repairs) {
  const { ctx, bbox } = plot;
  const size = 5 * devicePixelRatio;
  ctx.save();
  ctx.fillStyle = colour("--warn")();
  for (const { at } of repairs) {
    const x = plot.valToPos(at, "x", true);
    const y = bbox.top - size - 2;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, y - size);
    ctx.lineTo(x + size, y);
    ctx.lineTo(x, y + size);
    ctx.lineTo(x - size, y);
    ctx.fill();
  }
  ctx.restore();
}

/** Returns the chart in a sentence. */
function inWords(points, by) {
  if (!points.length) return "An empty chart.";
  const most = points.reduce((best, point) => (point.value > best.value ? point : best));
  return `Bar chart of ${count(points.length, by)}: ${number(sumOf(points))} in all, most of them ${timeText(most.from, by)} (${signed(most.value)}).`;
}
