"use strict";
// The page: what is open, what is selected, and the views that show it.

const $ = (id) => document.getElementById(id);
const SECTIONS = ["entry", "map-section", "sample-section", "feature-section", "components-section", "contributions-section", "histogram-section", "outliers-section"];
const EXPORTS = {
  Pictures: ["components", "contributions", "explained_share", "residual_histogram", "observed_vs_explained", "outlier_map", "rank_curve"].flatMap((name) => [`${name}.svg`, `${name}.png`]),
  Tables: ["components.csv", "codes.csv", "outliers.csv", "cleaned.csv"],
  Program: ["script.py"],
};

const state = { about: null, sample: 0, feature: 0, component: null, lines: {}, worst: [], view: null, drawn: 0, map: null, playing: false };

function tell(message) {
  $("message").textContent = message || "";
  $("message").hidden = !message;
}

// Runs some work and tells the user what went wrong, if anything did.
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    tell(error.message);
    if (error.status === 409) await refresh();
  }
}

// Where a point of a grid is, along each axis; points are counted line by line.
function placesOf(point, grid) {
  const places = [];
  for (const side of [...grid].reverse()) {
    places.unshift(point % side);
    point = Math.floor(point / side);
  }
  return places;
}

// What a sample or feature is called: by its name, by its place on a grid (as in robustnmf.formats), or by its number.
function nameOf(names, axis, place, word) {
  if (names) return names[place];
  if (!axis.grid || axis.grid.length < 2) return `${word} ${place}`;
  const places = placesOf(place, axis.grid), called = axis.grid_names || [];
  return called.length && called.every(Boolean) ? places.map((number, i) => `${called[i]} ${number}`).join(", ") : `pixel (${places.join(", ")})`;
}
const sampleName = (i) => nameOf(state.about.samples, state.about.sample_axis, i, "sample");
const featureName = (j) => nameOf(state.about.features, state.about.feature_axis, j, "feature");
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const headed = (word, name) => capital(name.startsWith(`${word} `) || name.startsWith("pixel ") ? name : `${word} ${name}`);

// A feature with its unit: of entries behind the name, of a scale such as wavelengths behind the number.
function featureTitle(j) {
  const axis = state.about.feature_axis, unit = axis.units ? axis.units[j] : "";
  if (axis.is_scale && axis.title && state.about.features) return [capital(axis.title), featureName(j), unit].filter(Boolean).join(" ");
  return headed("feature", featureName(j)) + (unit ? (axis.is_scale ? ` ${unit}` : ` (${unit})`) : "");
}

const MOST_BARS = 60;
const widthOf = (id) => Math.max(300, Math.min(1600, $(id).clientWidth || 900));

async function start() {
  document.body.classList.toggle("stored", !source.canChange);
  for (const id of ["open-label", "fit-form", "verdicts"]) $(id).hidden = !source.canChange;
  const studies = await source.studies();
  if (studies.length) await open(Number(sessionStorage.getItem("study")) || studies[studies.length - 1].id, studies);
  else $("start").hidden = false;
}

async function open(study, known = null) {
  source.study = known && !known.some((one) => one.id === study) ? known[known.length - 1].id : study;
  if (source.canChange) sessionStorage.setItem("study", source.study);
  Object.assign(state, { sample: 0, feature: 0, component: null, view: null, shown: false });
  await refresh();
  watch();
}

async function refresh() {
  const about = await source.get("");
  state.about = about;
  $("start").hidden = true;
  $("fit").hidden = false;
  $("title").textContent = `${about.name} · ${about.shape[0]} samples × ${about.shape[1]} features`;
  document.title = `${about.name} – robustnmf`;
  showModel();
  for (const id of SECTIONS) $(id).hidden = !about.fit;
  $("export-label").hidden = !about.fit || !source.canChange;
  if (!about.fit) return;
  state.view = state.view || { top: 0, bottom: about.shape[0], left: 0, right: about.shape[1] };
  const [components, contributions, histogram, worst] = await Promise.all(
    ["components", "contributions", "histogram", "outliers"].map((what) => source.get(what)));
  state.lines = { components, contributions };
  state.worst = worst;
  if (!state.shown && worst.length) Object.assign(state, { sample: worst[0].sample, feature: worst[0].feature });
  state.shown = true;
  showComponents();
  showContributions();
  showWorst();
  $("histogram").replaceChildren(barsChart(histogram.edges, histogram.kept, histogram.outliers, about.fit.threshold, widthOf("histogram"),
    `number of entries by residual in ${about.fit.unit}; the outermost bars hold all beyond`));
  await Promise.all([showMap(), showEntry()]);
}

function showModel() {
  const { fit, ranks, notes } = state.about;
  const facts = fit && {
    components: fit.rank, method: fit.method, "share of outliers": `${(100 * fit.outlier_share).toFixed(2)} %`,
    scale: short(fit.scale), iterations: `${fit.iterations}${fit.converged ? "" : ", not converged"}`,
    ...(fit.reason ? { "which fit": fit.reason } : {}),
  };
  $("facts").replaceChildren(...Object.entries(facts || {}).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
  $("warnings").replaceChildren(...[...notes, ...(fit ? fit.warnings : [])].map((text) => el("li", {}, text)));
  showRanks(ranks);
  $("again").disabled = !fit;
  $("run").textContent = fit ? "Fit anew" : "Fit";
  if (fit && $("rank").value === "auto") $("rank").value = fit.rank;
}

// While a search runs, the curve has the numbers that were tried so far.
function showRanks(ranks) {
  $("ranks").replaceChildren(...(ranks ? [rankChart(ranks, widthOf("ranks"), (rank) => { $("rank").value = rank; })] : []));
}

// --- Work in the background -------------------------------------------------------------------------------------------

async function run(action, content) {
  tell("");
  state.about = await source.post(action, content);
  watch();
}

async function watch() {
  const job = state.about && state.about.job;
  const running = Boolean(job && job.state === "running");
  $("progress").hidden = $("cancel").hidden = !running;
  for (const id of ["run", "search", "again"]) $(id).disabled = running || (id === "again" && !state.about.fit);
  $("progress-text").textContent = job ? (running ? `${job.kind === "fit" ? "Fitting" : "Searching"}: ${job.message}` : job.message && job.state !== "done" ? job.message : "") : "";
  if (!running) return;
  $("progress").value = job.progress;
  await new Promise((done) => setTimeout(done, 250));
  await attempt(async () => {
    state.about.job = await source.get("job");
    if (state.about.job.ranks) showRanks(state.about.job.ranks);
    if (state.about.job.state === "failed") tell(state.about.job.message);
    if (state.about.job.state === "done") {
      if (state.about.job.kind === "fit") state.view = null;
      await refresh();
    }
  });
  watch();
}

// --- The map ----------------------------------------------------------------------------------------------------------

function mapCells(found) {
  const cells = el("canvas", { width: found.width, height: found.height }), context = cells.getContext("2d");
  const image = context.createImageData(found.width, found.height), colours = new Uint32Array(image.data.buffer);
  // A single outlier among many entries must be seen. Bytes are red, green, blue, opacity, the first in the lowest place.
  bytesOf(found.cells).forEach((value, i) => { if (value) colours[i] = ((Math.max(90, value) << 24) | 0x2827d6) >>> 0; });
  context.putImageData(image, 0, 0);
  return cells;
}

async function showMap() {
  const canvas = $("map"), box = canvas.getBoundingClientRect(), ticket = ++state.drawn;
  const height = Math.max(40, Math.floor(box.height)), width = Math.max(40, Math.floor(box.width));
  // A click moves the selection and nothing else: what lies below it is not asked for again.
  const key = JSON.stringify([state.view, height, width, source.study, state.about.revision]);
  const found = state.map && state.map.key === key ? state.map.found : await source.get("map", { ...state.view, height, width });
  if (ticket !== state.drawn) return; // a later view is on its way
  if (!state.map || state.map.key !== key) state.map = { key, found, cells: mapCells(found) };
  if (!source.canChange) state.view = { top: found.rows[0], bottom: found.rows[1], left: found.columns[0], right: found.columns[1] };
  $("map-note").hidden = found.sampled === 1;
  $("map-note").textContent = `The map shows every ${found.sampled}th sample. Zoom in to see all.`;
  canvas.width = width; canvas.height = height;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(state.map.cells, 0, 0, width, height);
  const { top, bottom, left, right } = state.view, cell = [width / (right - left), height / (bottom - top)];
  context.strokeStyle = style("--accent");
  context.lineWidth = 2;
  const x = (state.feature - left) * cell[0], y = (state.sample - top) * cell[1];
  context.strokeRect(x - 3, y - 3, Math.max(cell[0], 2) + 6, Math.max(cell[1], 2) + 6);
}

function placeOnMap(event) {
  const box = $("map").getBoundingClientRect(), { top, bottom, left, right } = state.view;
  return [
    Math.min(bottom - 1, Math.floor(top + ((event.clientY - box.top) / box.height) * (bottom - top))),
    Math.min(right - 1, Math.floor(left + ((event.clientX - box.left) / box.width) * (right - left))),
  ];
}

function zoom(factor, [row, column]) {
  if (!source.canChange) return; // a stored page has one map
  const part = (low, high, at, count) => {
    const span = Math.min(count, Math.max(4, Math.round((high - low) * factor)));
    const first = Math.max(0, Math.min(count - span, Math.round(at - ((at - low) / (high - low)) * span)));
    return [first, first + span];
  };
  const { top, bottom, left, right } = state.view, [n, m] = state.about.shape;
  [state.view.top, state.view.bottom] = part(top, bottom, row, n);
  [state.view.left, state.view.right] = part(left, right, column, m);
  attempt(showMap);
}

function select(sample, feature) {
  const [n, m] = state.about.shape;
  state.sample = Math.max(0, Math.min(n - 1, sample));
  state.feature = Math.max(0, Math.min(m - 1, feature));
  const { top, bottom, left, right } = state.view;
  if (source.canChange && (state.sample < top || state.sample >= bottom || state.feature < left || state.feature >= right)) {
    state.view = { top: 0, bottom: n, left: 0, right: m };
  }
  return attempt(() => Promise.all([showMap(), showEntry()]));
}

function nextOutlier(step) {
  if (!state.worst.length) return tell("No entry is an outlier.");
  const here = state.worst.findIndex((one) => one.sample === state.sample && one.feature === state.feature);
  const next = state.worst[(here + step + state.worst.length) % state.worst.length];
  select(next.sample, next.feature);
}

const LETTERS = {
  n: () => nextOutlier(1), p: () => nextOutlier(-1), r: () => decide("reject"), a: () => decide("accept"), u: () => decide(null),
};
const isTyping = (target) => target.matches("select, textarea, input:not([type=range])");

// Letters work wherever the focus is, except where they are typed. Arrows scroll the page unless the map has the focus.
function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.about || !state.about.fit) return;
  const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }, onMap = event.target === $("map");
  if (onMap && moves[event.key]) select(state.sample + moves[event.key][0], state.feature + moves[event.key][1]);
  else if (onMap && (event.key === "+" || event.key === "-")) zoom(event.key === "+" ? 0.5 : 2, [state.sample, state.feature]);
  else if (LETTERS[event.key] && !isTyping(event.target)) LETTERS[event.key]();
  else return;
  event.preventDefault();
}

// --- One entry, its sample and its feature ----------------------------------------------------------------------------

const NEAR = 3;
const MOST_POINTS = 1200; // of a line that the server sends whole, see views.py

async function lineAround(kind, place, at, count) {
  // Of a long line only every few entries are sent: here all near the selected one are needed too.
  const whole = source.get(`${kind}/${place}`);
  if (count <= MOST_POINTS || !source.canChange) return [await whole, await whole];
  return Promise.all([whole, source.get(`${kind}/${place}`, { start: Math.max(0, at - 50), stop: Math.min(count, at + 51) })]);
}

async function showEntry() {
  const { sample, feature } = state, [n, m] = state.about.shape;
  const [[row, rowNear], [column, columnNear]] = await Promise.all([lineAround("sample", sample, feature, m), lineAround("feature", feature, sample, n)]);
  if (sample !== state.sample || feature !== state.feature) return;
  const at = rowNear.places.indexOf(feature);
  const verdict = (state.about.verdicts.find(([i, j]) => i === sample && j === feature) || [])[2] || "";
  const said = rowNear.measured[at] === null ? "missing" : rowNear.outlier[at] ? "outlier" : "fine";
  const facts = {
    sample: sampleName(sample), feature: featureName(feature), measured: short(rowNear.measured[at]),
    explained: short(rowNear.explained[at]), residual: `${short(rowNear.ratio[at])} ${state.about.fit.unit}`,
    ...(verdict ? { "you say": `${verdict}ed; Refit learns from it` } : { "the model says": said }),
  };
  $("entry-facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  for (const button of $("verdicts").children) button.setAttribute("aria-pressed", String(button.dataset.verdict === verdict));
  $("neighbours").replaceChildren(neighbours("Features beside it", rowNear, feature, featureName), neighbours("Samples beside it", columnNear, sample, sampleName));
  $("sample-title").textContent = headed("sample", sampleName(sample));
  $("feature-title").textContent = featureTitle(feature);
  const { feature_axis: scale, units } = state.about, unit = units ? ` (${units})` : "";
  const isTable = m <= MOST_BARS && !scale.is_scale, chart = isTable ? tableChart : entryChart;
  const over = scale.numbers && scale.title ? `${scale.title}${scale.units ? ` in ${scale.units[0]}` : ""}` : "features";
  const words = isTable ? `measured (dots) and explained (bars) of each feature${unit}` : `measured, explained (dashed) and outliers (red) over ${over}${unit}`;
  $("sample-line").replaceChildren(chart(row, { width: widthOf("sample-line"), names: featureName, positions: scale.numbers, selected: feature, label: words, click: (j) => select(sample, j) }));
  $("feature-line").replaceChildren(entryChart(column, { width: widthOf("feature-line"), ...overSamples(), selected: sample, label: "measured, explained (dashed) and outliers (red) over samples", click: (i) => select(i, feature) }));
  showPictures($("pictures"), row.pictures, { shape: scale.picture, selected: feature, click: (j) => select(sample, j) });
  showPictures($("feature-pictures"), column.pictures, { shape: state.about.sample_axis.picture, selected: sample, click: (i) => select(i, feature) });
  showPlayer(row.pictures);
  showMaps();
}

// Samples are drawn over time, over numbers that are their names, or in their order.
const overSamples = () => ({ positions: state.about.times || state.about.sample_axis.numbers, times: Boolean(state.about.times) });

function neighbours(title, line, at, nameOfPlace) {
  const here = line.places.indexOf(at), near = line.places.map((_, i) => i).slice(Math.max(0, here - NEAR), here + NEAR + 1);
  const rows = near.map((i) => el("tr", {},
    el("td", {}, nameOfPlace(line.places[i])),
    el("td", { class: `${line.outlier[i] ? "wrong" : ""} ${i === here ? "here" : ""}` }, short(line.measured[i])),
    el("td", {}, short(line.explained[i]))));
  return el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, title), el("th", {}, "measured"), el("th", {}, "explained"))), el("tbody", {}, ...rows));
}

function showPictures(place, pictures, how) {
  place.replaceChildren(...Object.entries(pictures || {}).map(([name, picture]) =>
    el("figure", {}, clickablePicture(picture, { ...how, red: name === "outliers" }), el("figcaption", {}, name))));
}

function showPlayer(pictures) {
  $("player").hidden = !pictures;
  $("frame").max = state.about.shape[0] - 1;
  $("frame").value = state.sample;
}

// Each frame waits for the one before it: large ones are shown slowly, but all are.
async function play() {
  state.playing = !state.playing;
  $("play").textContent = state.playing ? "Stop" : "Play";
  while (state.playing) {
    await select((state.sample + 1) % state.about.shape[0], state.feature);
    await new Promise((done) => setTimeout(done, 150));
  }
}

function decide(verdict) {
  if (!source.canChange) return;
  attempt(async () => {
    const { sample, feature } = state;
    state.about = await source.post("verdict", { sample, feature, verdict, revision: state.about.revision });
    tell("");
    await Promise.all([showMap(), showEntry()]);
  });
}

// --- Components, contributions, lists ---------------------------------------------------------------------------------

function choose(component) {
  state.component = state.component === component ? null : component;
  showComponents();
  showContributions();
}

function showComponents() {
  const { lines, images } = state.lines.components;
  $("components").replaceChildren(...lines.map((line, k) => el("button",
    { class: "card", type: "button", "aria-pressed": String(state.component === k), onclick: () => choose(k) },
    el("span", {}, `${k + 1} · ${(100 * state.about.fit.shares[k]).toFixed(1)} %`),
    images ? pictureCanvas(images[k]) : smallLine(line, k))));
  showProfile();
}

// What the chosen component is made of, and how much of each feature it is.
function showProfile() {
  const { percent, lines } = state.lines.components, k = state.component;
  $("profile").hidden = k === null || !percent;
  if ($("profile").hidden) return;
  const values = lines[k].values, total = values.reduce((sum, value) => sum + value, 0) || 1;
  const order = values.map((_, j) => j).sort((a, b) => percent[k][b] - percent[k][a]);
  const rows = order.map((j) => el("tr", {}, el("td", {}, featureName(j)), el("td", {}, short(values[j])),
    el("td", {}, `${((100 * values[j]) / total).toFixed(1)} %`), el("td", {}, `${percent[k][j].toFixed(1)} %`)));
  const head = ["feature", "value", "of the component", "of the feature"].map((name) => el("th", {}, name));
  $("profile-table").replaceChildren(el("caption", {}, `Component ${k + 1}`), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}

function smallLine(line, k) {
  const node = svg("svg", { viewBox: "0 0 200 90", role: "img", "aria-label": `component ${k + 1}` });
  const top = Math.max(...line.values) || 1, wide = 200 / line.values.length;
  if (line.values.length <= 60) {
    line.values.forEach((value, i) => {
      const bar = svg("rect", { x: i * wide, y: 90 - (88 * value) / top, width: Math.max(1, wide - 0.6), height: (88 * value) / top, fill: colourOf(k) });
      bar.append(svg("title", {}, `${featureName(i)}: ${short(value)}`));
      node.append(bar);
    });
  } else {
    const points = line.values.map((value, i) => `${(i * wide).toFixed(1)},${(90 - (88 * value) / top).toFixed(1)}`);
    node.append(svg("polyline", { points: points.join(" "), fill: "none", stroke: colourOf(k) }));
  }
  return node;
}

function showContributions() {
  const { lines, images } = state.lines.contributions;
  // Lines over the numbers of pixels say nothing: pixels have maps.
  $("contributions").hidden = Boolean(images);
  $("legend").replaceChildren(...lines.map((_, k) => chip(k)));
  $("contributions").replaceChildren(linesChart(lines, { width: widthOf("contributions"), ...overSamples(), chosen: state.component,
    label: `what components give to samples${state.about.units ? ` (${state.about.units})` : ""}` }));
  showMaps();
}

// The colour of a component; a click shows it alone.
function chip(k) {
  const spot = el("span", { class: "spot" });
  spot.style.background = colourOf(k);
  return el("button", { type: "button", "aria-pressed": String(state.component === k), onclick: () => choose(k) }, spot, `component ${k + 1}`);
}

function showMaps() {
  const { images } = state.lines.contributions, shape = state.about.sample_axis.picture;
  $("legend").hidden = Boolean(images);
  $("contribution-maps").replaceChildren(...(images || []).map((image, k) => el("figure", { class: "card" },
    clickablePicture(image, { shape, selected: state.sample, click: (i) => select(i, state.feature) }),
    el("figcaption", {}, `component ${k + 1}: click a pixel for its spectrum`))));
}

function showWorst() {
  const head = ["sample", "feature", "measured", "explained", "residual"].map((name) => el("th", {}, name));
  const rows = state.worst.map((one) => {
    const go = () => select(one.sample, one.feature);
    return el("tr", { tabindex: 0, onclick: go, onkeydown: (event) => { if (event.key === "Enter") go(); } },
      el("td", {}, sampleName(one.sample)), el("td", {}, featureName(one.feature)),
      ...["measured", "explained", "ratio"].map((name) => el("td", {}, short(one[name]))));
  });
  if (!rows.length) return $("outliers").replaceChildren(el("caption", {}, "No entry is an outlier."));
  $("outliers").replaceChildren(el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}

async function take(file) {
  if (!file) return;
  tell(`Reading ${file.name}…`);
  const { id } = await source.upload(file);
  tell("");
  $("rank").value = "auto";
  await open(id);
}

async function download(name) {
  const link = el("a", { href: URL.createObjectURL(await source.blob(`export/${name}`)), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function listen() {
  $("open").addEventListener("change", (event) => attempt(() => take(event.target.files[0])));
  $("fit-form").addEventListener("submit", (event) => {
    event.preventDefault();
    $("rank").blur(); // from here on letters are keys of the page
    const text = $("rank").value.trim();
    if (text !== "auto" && !/^[0-9]{1,5}$/.test(text)) tell("The number of components must be a whole number, or auto.");
    else attempt(() => run("fit", { rank: text === "auto" ? text : Number(text) }));
  });
  $("again").addEventListener("click", () => attempt(() => run("refit", {})));
  $("search").addEventListener("click", () => attempt(() => run("rank", {})));
  $("cancel").addEventListener("click", () => attempt(() => source.post("cancel")));
  $("map").addEventListener("click", (event) => select(...placeOnMap(event)));
  addEventListener("keydown", pressed);
  $("map").addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.7 : 1.4, placeOnMap(event));
  }, { passive: false });
  for (const button of $("verdicts").children) button.addEventListener("click", () => decide(button.dataset.verdict || null));
  $("frame").addEventListener("input", (event) => select(Number(event.target.value), state.feature));
  $("play").addEventListener("click", play);
  for (const [group, names] of Object.entries(EXPORTS)) $("export").append(el("optgroup", { label: group }, ...names.map((name) => el("option", { value: name }, name))));
  // Not as soon as one is chosen: with arrow keys, all on the way would be saved.
  $("save").addEventListener("click", () => attempt(() => download($("export").value)));
  let later;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => { if (state.about && state.about.fit) attempt(showMap); }, 150);
  });
  for (const [name, on] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    addEventListener(name, (event) => {
      event.preventDefault();
      document.body.classList.toggle("dropping", on);
      if (name === "drop" && source.canChange) attempt(() => take(event.dataTransfer.files[0]));
    });
  }
}

listen();
attempt(start);
