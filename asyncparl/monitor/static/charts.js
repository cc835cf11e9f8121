// Charts by Plotly, in the colours of the page.
"use strict";

document.getElementById = realGetElementById;  // see before-plotly.js

const GAP_S = 20;
const charts = new Map();

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// From where to where an axis goes. It spans at least the share `least` of the largest value, so that noise does not
// look like a rise, and so that there is a span where all values are the same.
function axisRange(values, from0, least, top = 0) {
  const known = values.filter((value) => value != null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  if (from0 && low >= 0) return [0, Math.max(high, top) * 1.05 || 1];
  const more = Math.max(least * size - (high - low), 0) / 2 + (high - low) * 0.05;
  return [low - more, high + more];
}

// Where nobody has looked for a while there is nothing to see: no line is drawn over that.
function withGaps(x, curves) {
  const steps = x.slice(1).map((value, index) => value - x[index]).sort((one, other) => one - other);
  const longest = Math.max(GAP_S, 3 * steps[steps.length >> 1]);
  const isGap = (index) => index > 0 && x[index] - x[index - 1] > longest;
  const spread = (values, filler) => values.flatMap((value, index) => isGap(index) ? [filler(index), value] : [value]);
  return [spread(x, (index) => x[index - 1]), curves.map((curve) => ({ ...curve, y: curve.y && spread(curve.y, () => null) }))];
}

// A point without neighbours would not be seen in a line.
function markers(y) {
  const sizes = y.map((value, index) => value != null && y[index - 1] == null && y[index + 1] == null ? 5 : 0);
  return sizes.some(Boolean) ? { mode: "lines+markers", marker: { size: sizes } } : { mode: "lines" };
}

function sums(curves) { return curves[0].y.map((_, index) => curves.reduce((sum, curve) => sum + (curve.y[index] || 0), 0)); }

// Curves: {name, y}. All of them are drawn anew: they are few points, and so nothing grows.
function draw(id, x, curves, options = {}) {
  const { kind = "time", format: tickFormat = "", from0 = false, stacked = false, least = 0.1, top = 0 } = options;
  const place = document.getElementById(id);
  charts.set(id, () => draw(id, x, curves, options));
  if (kind === "time") [x, curves] = withGaps(x, curves);
  const known = curves.filter((curve) => curve.y && curve.y.some((value) => value != null));
  place.classList.toggle("none", !known.length);
  if (!known.length) { if (place.data) Plotly.purge(place); return; }
  const traces = known.map((curve, index) => ({
    x: kind === "time" ? x.map((seconds) => new Date(seconds * 1000)) : x,
    y: curve.y, name: curve.name, type: "scatter", ...markers(curve.y),
    line: { color: colour(`--c${index % 5 + 1}`), width: 2 },
    ...(stacked ? { stackgroup: "all" } : {}),
  }));
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), color: colour("--weak"), fixedrange: true,
    automargin: true };
  const layout = {
    margin: { l: 44, r: 8, t: 8, b: 28 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, DejaVu Sans, sans-serif", size: 11, color: colour("--weak") },
    showlegend: known.length > 1, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { ...axis, type: kind === "time" ? "date" : "linear", nticks: 5,
      tickformat: kind === "time" ? "%H:%M:%S" : "~s" },
    yaxis: { ...axis, nticks: 5, tickformat: tickFormat,
      range: axisRange(stacked ? sums(known) : known.flatMap((curve) => curve.y), from0, least, top) },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") } },
  };
  Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((again) => again()));
