// Charts by Plotly, in the colours of the page.
"use strict";

document.getElementById = realGetElementById;  // see before-plotly.js

const charts = new Map();

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// Curves: {name, y, fill?}. All of them are drawn anew: they are few points, and so nothing grows.
function draw(id, x, curves, { kind = "time", format: tickFormat = "", from0 = false, stacked = false } = {}) {
  const place = document.getElementById(id);
  const known = curves.filter((curve) => curve.y && curve.y.some((value) => value != null));
  charts.set(id, () => draw(id, x, curves, { kind, format: tickFormat, from0, stacked }));
  place.classList.toggle("none", !known.length);
  if (!known.length) { if (place.data) Plotly.purge(place); return; }
  const isShort = x.length < 3;
  const traces = known.map((curve, index) => ({
    x: kind === "time" ? x.map((seconds) => new Date(seconds * 1000)) : x,
    y: curve.y, name: curve.name, type: "scatter", mode: isShort ? "lines+markers" : "lines",
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
    yaxis: { ...axis, nticks: 5, tickformat: tickFormat, rangemode: from0 ? "tozero" : "normal" },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--text") } },
  };
  Plotly.react(place, traces, layout, { displayModeBar: false, responsive: true });
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((again) => again()));
