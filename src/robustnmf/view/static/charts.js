"use strict";
// Lines, bars and images, without any library. Texts are never parsed as HTML.

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
// Whole numbers such as counts are shown in full.
function short(value) {
  if (value === null || value === undefined) return "–";
  return String(Number.isInteger(value) && Math.abs(value) < 1e6 ? value : Number(value.toPrecision(4)));
}

// Round numbers between two ends, about so many.
function ticksOf([low, high], most) {
  const rough = (high - low) / most || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first + 1;
  return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// A chart with its words above it: those of a drawing do not wrap on a narrow screen.
const captioned = (node, words) => el("figure", { class: "chart" }, el("figcaption", {}, words), node);

// A frame with axes; returns functions from data to the picture. `x` and `y` are [lowest, highest].
function frame(x, y, { width = 900, height = 190, times = false, label = "", marks = null } = {}) {
  const left = 52, bottom = 24, top = 14;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const span = (ends) => (ends[1] > ends[0] ? ends[1] - ends[0] : 1);
  const px = (v) => left + ((v - x[0]) / span(x)) * (width - left - 6);
  const py = (v) => height - bottom - ((v - y[0]) / span(y)) * (height - bottom - top);
  node.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width}` }));
  for (const [value, text] of marks || ticksOf(y, 4).map((value) => [value, String(value)])) {
    node.append(svg("text", { x: left - 6, y: py(value) + 4, "text-anchor": "end" }, text));
  }
  const count = width < 500 ? 2 : 4; // names of places must not run into each other
  const dates = () => Array.from({ length: count + 1 }, (_, tick) => x[0] + (span(x) * tick) / count);
  for (const place of times ? dates() : ticksOf(x, 2 * count)) {
    const text = times ? new Date(place).toISOString().slice(0, 10) : String(place), at = px(place);
    node.append(svg("text", { x: at, y: height - 6, "text-anchor": at > width - 30 ? "end" : at < left + 30 ? "start" : "middle" }, text));
  }
  return { node, px, py, width, height, left };
}

const LONG_GAP = 20; // typical steps of time without a sample from which on nothing is drawn, as in robustnmf.plots
const GAP = -1;

// Points from left to right, with a GAP where time goes on for long without a sample: no line leads across it.
function orderOf(xs, times) {
  const order = xs.map((_, i) => i).sort((a, b) => xs[a] - xs[b]);
  if (!times || order.length < 3) return order;
  const steps = order.slice(1).map((i, k) => xs[i] - xs[order[k]]), sorted = [...steps].sort((a, b) => a - b), half = steps.length >> 1;
  const typical = steps.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return order.flatMap((i, k) => (k && steps[k - 1] > LONG_GAP * Math.max(typical, 1000) ? [GAP, i] : [i]));
}

// A line is broken where nothing is known. A point between two gaps is drawn as a dot: its line has no length.
function pathOf(xs, ys, px, py, order = xs.map((_, i) => i)) {
  let path = "", pen = "M", alone = "";
  for (const i of order) {
    if (i === GAP || ys[i] === null) { path += alone; pen = "M"; alone = ""; continue; }
    path += `${pen}${px(xs[i]).toFixed(1)} ${py(ys[i]).toFixed(1)}`;
    alone = pen === "M" ? "h0" : "";
    pen = "L";
  }
  return path + alone;
}

function limits(...lists) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  return low <= high ? [low, high] : [0, 1];
}

const FAR_ABOVE = 3; // times what fits: larger entries would press all others onto the axis, and are marked at its edge

// Measured and explained entries along a line, outliers marked; `click` is told the place of the nearest entry.
function entryChart(line, { width, positions, selected, times, label, click }) {
  const xs = line.places.map((place) => (positions ? positions[place] : place));
  const inside = line.measured.filter((_, i) => !line.outlier[i]);
  const y = limits(inside, line.explained, [0]);
  const largest = limits(line.measured, [0])[1];
  y[1] = largest <= FAR_ABOVE * y[1] ? 1.05 * Math.max(largest, y[1]) : 1.25 * y[1];
  const beyond = line.measured.filter((value) => value > y[1]);
  const told = beyond.length ? `; ▲ above the axis: ${beyond.length}, up to ${short(largest)}` : "";
  const { node, px, py } = frame(limits(xs), y, { width, times, label: label + told });
  const red = style("--outlier"), order = orderOf(xs, times), rounded = { fill: "none", "stroke-linecap": "round" };
  node.append(svg("path", { ...rounded, d: pathOf(xs, line.measured.map((v) => (v === null ? null : Math.min(v, y[1]))), px, py, order), stroke: style("--kept"), "stroke-width": 1.2 }));
  node.append(svg("path", { ...rounded, d: pathOf(xs, line.explained, px, py, order), stroke: style("--explained"), "stroke-width": 1, "stroke-dasharray": "4 3" }));
  line.places.forEach((place, i) => {
    if (line.outlier[i] && line.measured[i] !== null) {
      const isBeyond = line.measured[i] > y[1], x = px(xs[i]), edge = py(y[1]);
      const mark = isBeyond
        ? svg("path", { class: "beyond", d: `M${(x - 5).toFixed(1)} ${edge + 8}h10l-5 -9z`, fill: red })
        : svg("circle", { cx: x, cy: py(line.measured[i]), r: 3.5, fill: red });
      mark.append(svg("title", {}, `${short(line.measured[i])} measured${isBeyond ? ", above the axis" : ""}, ${short(line.explained[i])} explained`));
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
  return captioned(node, label + told);
}

// Entries of a sample of a table: features by name, sizes on a logarithmic axis, because units differ.
function tableChart(line, { width, names, selected, label, click }) {
  const positive = [...line.measured, ...line.explained].filter((v) => v > 0);
  const [low, high] = positive.length ? limits(positive) : [1, 10];
  const floor = Math.max(low, high * 1e-7), log = (v) => Math.log10(Math.max(v, floor));
  const height = 300, bottom = 120, left = 60, top = 18, wide = (width - left - 8) / line.places.length;
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const py = (v) => height - bottom - ((log(v) - log(floor)) / (log(high) - log(floor) || 1)) * (height - bottom - top);
  node.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width}` }));
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
  return captioned(node, label);
}

function linesChart(lines, { width, positions, times, chosen, label }) {
  const place = (i, step) => (positions ? positions[Math.min(i * step, positions.length - 1)] : i * step);
  const count = lines[0].values.length, step = lines[0].step;
  const xs = Array.from({ length: count }, (_, i) => place(i, step));
  const shown = lines.map((line, k) => [line.values, k]).filter(([, k]) => chosen === null || chosen === k);
  const { node, px, py } = frame(limits(xs), limits([0], ...shown.map(([values]) => values)), { width, times, label, height: 220 });
  const order = orderOf(xs, times);
  for (const [values, k] of shown) node.append(svg("path", { d: pathOf(xs, values, px, py, order), fill: "none", stroke: colourOf(k), "stroke-width": 1.2, "stroke-linecap": "round" }));
  return captioned(node, label);
}

function barsChart(edges, kept, outliers, threshold, width, label) {
  const counts = kept.map((count, i) => Math.log10(1 + count + outliers[i]));
  const most = Math.max(...counts, 1), marks = Array.from({ length: Math.floor(most) + 1 }, (_, power) => [Math.log10(1 + 10 ** power), String(10 ** power)]);
  const { node, px, py } = frame([edges[0], edges[edges.length - 1]], [0, most], { width, label, height: 220, marks: [[0, "0"], ...marks.filter(([at]) => at <= most)] });
  counts.forEach((count, i) => {
    const wrong = outliers[i] > kept[i];
    node.append(svg("rect", { x: px(edges[i]), y: py(count), width: Math.max(1, px(edges[i + 1]) - px(edges[i]) - 0.5), height: py(0) - py(count), fill: style(wrong ? "--outlier" : "--kept") }));
  });
  for (const sign of threshold === null ? [] : [-1, 1]) {
    node.append(svg("path", { d: `M${px(sign * threshold)} 14V196`, stroke: style("--ink"), "stroke-dasharray": "4 3" }));
  }
  return captioned(node, label);
}

function rankChart(found, width, choose) {
  const label = "prediction of hidden entries by number of components, larger is better";
  const { node, px, py } = frame(limits(found.ranks), limits(found.scores), { width, label, height: 170 });
  node.append(svg("path", { d: pathOf(found.ranks, found.scores, px, py), fill: "none", stroke: style("--kept") }));
  found.ranks.forEach((rank, i) => {
    const dot = svg("circle", { cx: px(rank), cy: py(found.scores[i]), r: rank === found.chosen ? 7 : 5, fill: style(rank === found.chosen ? "--outlier" : "--kept") });
    dot.append(svg("title", {}, `${rank} components: ${short(found.scores[i])}`));
    dot.style.cursor = "pointer";
    dot.addEventListener("click", () => choose(rank));
    node.append(dot);
  });
  return captioned(node, label);
}

const bytesOf = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

// A picture in grey, where 0 is missing, in colour, or a mask in red.
function pictureCanvas(picture, red = false) {
  const canvas = el("canvas", { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d"), image = context.createImageData(picture.width, picture.height), bytes = bytesOf(picture.bytes);
  if (picture.colour) image.data.set(bytes);
  else bytes.forEach((value, i) => image.data.set(red ? [214, 39, 40, value] : [value, value, value, value ? 255 : 0], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

// Channels stand side by side with a line between them, see robustnmf.plots.grids.
const MOST_IN_A_ROW = 4;

// How the pixels of a picture lie on its canvas; `high` and `wide` are those of a channel and the line behind it.
function layoutOf(canvas, shape) {
  const isColour = shape.length === 3 && shape[2] === 3, [rows, columns] = isColour ? shape : shape.slice(-2);
  const count = isColour ? 1 : shape.slice(0, -2).reduce((a, b) => a * b, 1);
  const across = count <= MOST_IN_A_ROW ? count : Math.ceil(Math.sqrt(count)), down = Math.ceil(count / across);
  return { rows, columns, count, across, depth: isColour ? 3 : 1, high: (canvas.height + 1) / down, wide: (canvas.width + 1) / across };
}

// The pixel of a picture that was clicked, null for what lies between two channels.
function pixelAt(event, canvas, shape) {
  const { rows, columns, count, across, depth, high, wide } = layoutOf(canvas, shape), box = canvas.getBoundingClientRect();
  const y = ((event.clientY - box.top) / box.height) * canvas.height, x = ((event.clientX - box.left) / box.width) * canvas.width;
  const panel = Math.floor(y / high) * across + Math.floor(x / wide), top = (y % high) / (high - 1), left = (x % wide) / (wide - 1);
  if (panel >= count || top < 0 || top >= 1 || left < 0 || left >= 1) return null;
  return (panel * rows * columns + Math.floor(top * rows) * columns + Math.floor(left * columns)) * depth;
}

// A picture whose pixels can be clicked, with a ring around one of them.
function clickablePicture(picture, { red = false, shape, selected, click }) {
  const canvas = pictureCanvas(picture, red), { rows, columns, across, depth, high, wide } = layoutOf(canvas, shape);
  canvas.addEventListener("click", (event) => {
    const pixel = pixelAt(event, canvas, shape);
    if (pixel !== null) click(pixel);
  });
  const place = Math.floor(selected / depth), panel = Math.floor(place / (rows * columns)), inside = place % (rows * columns);
  const ring = el("span", { class: "ring" });
  ring.style.left = `${(100 * ((panel % across) * wide + (((inside % columns) + 0.5) / columns) * (wide - 1))) / canvas.width}%`;
  ring.style.top = `${(100 * (Math.floor(panel / across) * high + ((Math.floor(inside / columns) + 0.5) / rows) * (high - 1))) / canvas.height}%`;
  return el("div", { class: "picture" }, canvas, ring);
}
