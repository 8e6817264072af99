"use strict";
// Lines, bars and grey images, without any library. Texts are never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"];

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function svg(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

const colourOf = (component) => COLOURS[component % COLOURS.length];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const short = (value) => (value === null || value === undefined ? "–" : Number(value.toPrecision(4)).toString());

// A frame with axes; returns functions from data to the picture. `x` and `y` are [lowest, highest].
function frame(x, y, { width = 900, height = 190, times = false, label = "" } = {}) {
  const left = 52, bottom = 24, top = 14;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const span = (ends) => (ends[1] > ends[0] ? ends[1] - ends[0] : 1);
  const px = (v) => left + ((v - x[0]) / span(x)) * (width - left - 6);
  const py = (v) => height - bottom - ((v - y[0]) / span(y)) * (height - bottom - top);
  node.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width}` }));
  for (let tick = 0; tick <= 4; tick++) {
    const value = y[0] + (span(y) * tick) / 4;
    node.append(svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, short(value)));
  }
  const last = width < 500 ? 2 : 4; // names of places must not run into each other
  for (let tick = 0; tick <= last; tick++) {
    const place = x[0] + (span(x) * tick) / last;
    const text = times ? new Date(place).toISOString().slice(0, 10) : short(Math.round(place * 1000) / 1000);
    node.append(svg("text", { x: px(place), y: height - 6, "text-anchor": tick === last ? "end" : tick ? "middle" : "start" }, text));
  }
  if (label) node.append(svg("text", { x: left, y: 10 }, label));
  return { node, px, py, width, height, left };
}

function pathOf(xs, ys, px, py) {
  let path = "", pen = "M";
  for (let i = 0; i < ys.length; i++) {
    if (ys[i] === null) { pen = "M"; continue; }
    path += `${pen}${px(xs[i]).toFixed(1)} ${py(ys[i]).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function limits(...lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  return low <= high ? [low, high] : [0, 1];
}

// Measured and explained entries along a line, outliers marked; `click` is told the place of the nearest entry.
function entryChart(line, { width, positions, selected, times, label, click }) {
  const xs = line.places.map((place) => (positions ? positions[place] : place));
  const inside = line.measured.filter((_, i) => !line.outlier[i]);
  const y = limits(inside, line.explained, [0]);
  y[1] *= 1.25;
  const { node, px, py } = frame(limits(xs), y, { width, times, label });
  const top = (value) => py(Math.min(value, y[1])), red = style("--outlier");
  node.append(svg("path", { d: pathOf(xs, line.measured.map((v) => (v === null ? null : Math.min(v, y[1]))), px, py), fill: "none", stroke: style("--kept"), "stroke-width": 1.2 }));
  node.append(svg("path", { d: pathOf(xs, line.explained, px, py), fill: "none", stroke: style("--explained"), "stroke-width": 1, "stroke-dasharray": "4 3" }));
  line.places.forEach((place, i) => {
    if (line.outlier[i] && line.measured[i] !== null) {
      const mark = svg("circle", { cx: px(xs[i]), cy: top(line.measured[i]), r: 3.5, fill: red });
      mark.append(svg("title", {}, `${short(line.measured[i])} measured, ${short(line.explained[i])} explained`));
      node.append(mark);
    }
    if (place === selected) node.append(svg("path", { d: `M${px(xs[i])} 14V166`, stroke: style("--accent"), "stroke-width": 1.5 }));
  });
  if (click) {
    node.style.cursor = "crosshair";
    node.addEventListener("click", (event) => {
      const box = node.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
      let best = 0;
      xs.forEach((x, i) => { if (Math.abs(px(x) - at) < Math.abs(px(xs[best]) - at)) best = i; });
      click(line.places[best]);
    });
  }
  return node;
}

// Entries of a sample of a table: features by name, sizes on a logarithmic axis, because units differ.
function tableChart(line, { width, names, selected, label, click }) {
  const positive = [...line.measured, ...line.explained].filter((v) => v > 0);
  const [low, high] = positive.length ? limits(positive) : [1, 10];
  const floor = Math.max(low, high * 1e-7), log = (v) => Math.log10(Math.max(v, floor));
  const height = 300, bottom = 120, left = 60, top = 18, wide = (width - left - 8) / line.places.length;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const py = (v) => height - bottom - ((log(v) - log(floor)) / (log(high) - log(floor) || 1)) * (height - bottom - top);
  node.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width}` }), svg("text", { x: left, y: 11 }, label));
  for (let power = Math.ceil(log(floor)); power <= log(high); power++) {
    node.append(svg("text", { x: left - 6, y: py(10 ** power) + 4, "text-anchor": "end" }, `1e${power}`));
  }
  line.places.forEach((place, i) => {
    const x = left + (i + 0.5) * wide, shown = names(place);
    const group = svg("g");
    group.append(svg("rect", { x: x - wide / 2, y: top, width: wide, height: height - top, fill: place === selected ? style("--line") : "transparent" }));
    group.append(svg("path", { d: `M${x - wide * 0.35} ${py(line.explained[i] || 0)}h${wide * 0.7}`, stroke: style("--explained"), "stroke-width": 2 }));
    if (line.measured[i] !== null) group.append(svg("circle", { cx: x, cy: py(line.measured[i]), r: 4, fill: style(line.outlier[i] ? "--outlier" : "--kept") }));
    group.append(svg("text", { x: 0, y: 0, "text-anchor": "end", transform: `translate(${x + 4} ${height - bottom + 8}) rotate(-60)` }, shown.length > 18 ? shown.slice(0, 17) + "…" : shown));
    group.append(svg("title", {}, `${shown}: ${short(line.measured[i])} measured, ${short(line.explained[i])} explained`));
    group.addEventListener("click", () => click(place));
    node.append(group);
  });
  return node;
}

function linesChart(lines, { width, positions, times, chosen, label }) {
  const place = (i, step) => (positions ? positions[Math.min(i * step, positions.length - 1)] : i * step);
  const count = lines[0].values.length, step = lines[0].step;
  const xs = Array.from({ length: count }, (_, i) => place(i, step));
  const shown = lines.map((line, k) => [line.values, k]).filter(([, k]) => chosen === null || chosen === k);
  const { node, px, py } = frame(limits(xs), limits([0], ...shown.map(([values]) => values)), { width, times, label, height: 220 });
  for (const [values, k] of shown) node.append(svg("path", { d: pathOf(xs, values, px, py), fill: "none", stroke: colourOf(k), "stroke-width": 1.2 }));
  return node;
}

function barsChart(edges, kept, outliers, threshold, width, label) {
  const counts = kept.map((count, i) => Math.log10(1 + count + outliers[i]));
  const { node, px, py } = frame([edges[0], edges[edges.length - 1]], [0, Math.max(...counts, 1)], { width, label, height: 220 });
  counts.forEach((count, i) => {
    const wrong = outliers[i] > kept[i];
    node.append(svg("rect", { x: px(edges[i]), y: py(count), width: Math.max(1, px(edges[i + 1]) - px(edges[i]) - 0.5), height: py(0) - py(count), fill: style(wrong ? "--outlier" : "--kept") }));
  });
  for (const sign of threshold === null ? [] : [-1, 1]) {
    node.append(svg("path", { d: `M${px(sign * threshold)} 14V196`, stroke: style("--ink"), "stroke-dasharray": "4 3" }));
  }
  return node;
}

function rankChart(found, width, choose) {
  const { node, px, py } = frame(limits(found.ranks), limits(found.scores), { width, label: "prediction of hidden entries by number of components", height: 170 });
  node.append(svg("path", { d: pathOf(found.ranks, found.scores, px, py), fill: "none", stroke: style("--kept") }));
  found.ranks.forEach((rank, i) => {
    const dot = svg("circle", { cx: px(rank), cy: py(found.scores[i]), r: rank === found.chosen ? 7 : 5, fill: style(rank === found.chosen ? "--outlier" : "--kept") });
    dot.append(svg("title", {}, `${rank} components: ${short(found.scores[i])}`));
    dot.style.cursor = "pointer";
    dot.addEventListener("click", () => choose(rank));
    node.append(dot);
  });
  return node;
}

const bytesOf = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

function greyCanvas(picture, red = false) {
  const canvas = el("canvas", { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d"), image = context.createImageData(picture.width, picture.height);
  bytesOf(picture.bytes).forEach((value, i) => image.data.set(red ? [214, 39, 40, value] : [value, value, value, 255], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}
