// A library for maps inside Plotly adds a style element to the page as it is loaded, unless it finds its own there. Our
// Content-Security-Policy forbids that, and nobody draws maps here: for as long as Plotly is loaded, it is there.
"use strict";

const realGetElementById = document.getElementById;
document.getElementById = (id) => /^[0-9a-f]{64}$/.test(id) ? document.body : realGetElementById.call(document, id);
