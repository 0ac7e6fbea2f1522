"use strict";
// The data is one document, `inspect.json` as it is, and the list of what is drawn by depth.
const { document: report, panels } = JSON.parse(document.getElementById("data").textContent);
const models = report.models;
const byId = (id) => document.getElementById(id);
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const DASHES = ["", "5 3", "1.5 2.5"];
const BORDERS = ["solid", "dashed", "dotted"];

// What is looked at. `token` stays, `peek` is under the pointer; `cell` is a read and a source.
const view = { token: null, peek: null, group: null, quantity: "weight", centre: 0, scale: "own", cell: null };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "text", "circle", "title", "linearGradient", "stop", "defs"];
  const node = svg.includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const fixed = (x) => x.toFixed(4);

function brief(x) {
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-3 ? x.toExponential(2) : String(Number(x.toPrecision(4)));
  return text.replace("-", "\u2212");
}

const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

const label = (m) => `${models[m].name} (${models[m].stream.name})`;

/* ---- the weights ---- */

function unpack({ token_weights: stored }) {
  const bytes = Uint8Array.from(atob(stored.data), (c) => c.charCodeAt(0));
  const numbers = new DataView(bytes.buffer);
  return (place) => numbers.getInt16(2 * place, true);
}
const single = models.map(unpack);

function ofToken(m, read, source, token, group) {
  const { groups, token_weights: { kept, scale } } = models[m];
  const pair = (read * (read + 1)) / 2 + source;
  return single[m]((pair * kept + token) * groups + group) * scale[read];
}

const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
const shownToken = () => (view.peek === null ? view.token : view.peek);
// a stream without groups has one weight for all channels, whichever group is chosen
const shownGroup = (m) => (view.group !== null && view.group < models[m].groups ? view.group : null);
const overTokens = () => view.quantity === "share" || view.quantity === "spread";

function weight(m, read, source, group) {
  const model = models[m], token = overTokens() ? null : shownToken();
  if (view.quantity === "share") return model.share[read][source];
  const table = view.quantity === "spread" ? model.spread : model.weights;
  const of = (g) => (token === null ? table[read][source][g] : ofToken(m, read, source, token, g));
  return group === null ? mean([...Array(model.groups).keys()].map(of)) : of(group);
}

function rowOf(m, read, group) {
  const row = [...Array(read + 1).keys()].map((source) => weight(m, read, source, group));
  if (view.quantity !== "relative") return row;
  const total = row.reduce((sum, x) => sum + Math.abs(x), 0) || 1;
  return row.map((x) => x / total);
}

/* ---- names of depths ---- */

const shortName = (name) => name.replace("embedding", "E").replace("output", "O")
  .replace("attention ", "A").replace("mlp ", "M");

// Every name where there is room, else every so many sublayers, and the last.
function ticks(names, room) {
  const step = [1, 2, 4, 8, 16, 32, 64, 128].find((s) => s * room >= 28) || 256;
  const last = names.length - 1;
  return names.map((name, i) => [i, shortName(name)]).filter(([i]) =>
    i === last || (i % step === 0 && (last - i) * room >= 28));
}

/* ---- colours of a map: blue below the centre, red above it ---- */

const ENDS = {
  light: { low: [33, 102, 172], mid: [247, 247, 247], high: [178, 24, 43] },
  dark: { low: [110, 180, 245], mid: [36, 41, 48], high: [255, 122, 105] },
};
let printing = false;

function colour(x) {
  const { low, mid, high } = ENDS[dark.matches && !printing ? "dark" : "light"];
  const end = x < 0 ? low : high, t = Math.min(Math.abs(x), 1) ** 0.8;
  return `rgb(${mid.map((c, i) => Math.round(c + (end[i] - c) * t)).join(",")})`;
}

/* ---- maps ---- */

const maps = models.map((_, m) => buildMap(m, `map-${m}`, models.length === 1 ? 620 : models.length === 2 ? 500 : 318));
maps.forEach((map, m) => {
  const heading = make("h3", {}, label(m));
  map.caption = make("p", { class: "note" });
  byId("maps").append(make("figure", {}, heading, map.svg, map.caption));
});

// One model leaves room for its groups, each in a map that does not follow the choice of a group.
const few = models.length === 1 && models[0].groups > 1 && models[0].groups <= 8;
const small = !few ? [] : [...Array(models[0].groups).keys()].map((g) => ({ ...buildMap(0, `map-0-${g}`, 210), group: g }));
if (few) {
  byId("maps").append(make("div", { class: "columns small" }, ...small.map(({ svg, group }) =>
    make("figure", {}, make("h3", {}, `group ${group}`), svg))));
}

function buildMap(m, id, room) {
  const model = models[m], n = model.reads.length;
  const size = Math.max(Math.min(Math.floor(room / n), 34), 3), left = 34, top = 20;
  const width = left + n * size + 74, height = top + n * size + 40;
  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, tabindex: 0, role: "img", class: "map", id,
  });
  svg.append(make("rect", { x: left, y: top, width: n * size, height: n * size, class: "empty" }));
  const cells = [];
  for (let read = 0; read < n; read++) {
    cells.push([]);
    for (let source = 0; source <= read; source++) {
      const cell = make("rect", {
        x: left + source * size, y: top + read * size, width: size, height: size,
        "data-read": read, "data-source": source, "shape-rendering": "crispEdges",
      });
      cells[read].push(cell);
      svg.append(cell);
    }
  }
  for (const [i, name] of ticks(model.reads, size * 1.7)) {
    svg.append(make("text", { x: left - 5, y: top + (i + 0.5) * size + 4, "text-anchor": "end" }, name));
  }
  for (const [i, name] of ticks(model.sources, size)) {
    svg.append(make("text", { x: left + (i + 0.5) * size, y: top + n * size + 14, "text-anchor": "middle" }, name));
  }
  svg.append(make("text", { x: left + (n * size) / 2, y: height - 8, "text-anchor": "middle", class: "small" },
    "source"), make("text", { x: left - 5, y: 12, "text-anchor": "end", class: "small" }, "read"));
  svg.append(make("text", { x: left + n * size - 4, y: top + 12, "text-anchor": "end", class: "small" },
    "not yet written"));
  const bar = buildBar(id, left + n * size + 14, top, n * size);
  const cursor = make("rect", { width: size, height: size, class: "cursor", visibility: "hidden" });
  svg.append(bar.node, cursor);
  svg.addEventListener("pointermove", (event) => {
    const { read, source } = event.target.dataset || {};
    if (read !== undefined) point(Number(read), Number(source));
  });
  svg.addEventListener("keydown", (event) => moveCell(event, n));
  return { svg, cells, cursor, bar, size, left, top };
}

function buildBar(map, x, y, height) {
  const stops = [...Array(21).keys()].map((i) => make("stop", { offset: i / 20 }));
  const defs = make("defs", {}, make("linearGradient", { id: `bar-${map}`, x1: 0, y1: 1, x2: 0, y2: 0 }, ...stops));
  const body = make("rect", { x, y, width: 12, height, fill: `url(#bar-${map})`, stroke: "none" });
  const marks = [0, 0.5, 1].map((at) =>
    make("text", { x: x + 16, y: y + (1 - at) * (height - 10) + 9 }, ""));
  return { node: make("g", {}, defs, body, ...marks), stops, marks };
}

function drawMaps() {
  const centre = view.quantity === "weight" ? view.centre : 0;
  const values = models.map((model, m) => model.reads.map((_, read) => rowOf(m, read, shownGroup(m))));
  const reaches = values.map((rows) => reachOf(rows, centre));
  const most = Math.max(...reaches);
  for (const map of small) {
    const rows = models[0].reads.map((_, read) => rowOf(0, read, map.group));
    paint(map, rows, centre, reachOf(rows, centre));
    map.svg.setAttribute("aria-label", `Map of group ${map.group}; ${whichTokens()}.`);
  }
  maps.forEach((map, m) => {
    map.values = values[m];
    paint(map, values[m], centre, view.scale === "shared" ? most : reaches[m]);
    const groups = models[m].groups;
    const which = groups === 1 ? "one weight for all channels" : view.quantity === "share" ? "all groups together"
      : shownGroup(m) === null ? `mean of ${groups} groups` : `group ${shownGroup(m)} of ${groups}`;
    map.caption.textContent = `${which}; ${whichTokens()}`;
    map.svg.setAttribute("aria-label",
      `Map of ${label(m)}: ${which}; ${whichTokens()}. Arrow keys move from cell to cell.`);
  });
  drawCell();
}

function reachOf(rows, centre) {
  const reach = Math.max(...rows.map((row) => Math.max(...row.map((x) => Math.abs(x - centre)))));
  return reach < 1e-6 ? 1e-3 : reach; // rounding alone is not worth a colour
}

function paint(map, rows, centre, reach) {
  map.cells.forEach((row, read) => row.forEach((cell, source) =>
    cell.setAttribute("fill", colour((rows[read][source] - centre) / reach))));
  map.bar.stops.forEach((stop, i) => stop.setAttribute("stop-color", colour(i / 10 - 1)));
  [centre - reach, centre, centre + reach].forEach((x, i) => { map.bar.marks[i].textContent = brief(x); });
}

function whichTokens() {
  const token = overTokens() ? null : shownToken();
  const all = report.text.rows * report.text.length;
  return token === null ? `over ${count(all, "token")}` : `token ${token}, \u201c${visible(report.text.words[token])}\u201d`;
}

function point(read, source) {
  view.cell = [read, Math.min(source, read)];
  drawCell();
}

function moveCell(event, n) {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const [read, source] = view.cell || [n - 1, 0];
  const within = (x, most) => Math.max(0, Math.min(most, x));
  const next = view.cell ? within(read + step[0], n - 1) : read;
  point(next, within(view.cell ? source + step[1] : source, next));
}

function drawCell() {
  const lines = [];
  small.forEach((map) => placeCursor(map, 0));
  maps.forEach((map, m) => {
    if (!placeCursor(map, m)) return;
    const [read, source] = view.cell;
    const model = models[m], group = shownGroup(m);
    const value = make("span", { class: "value", id: `value-${m}` }, fixed(map.values[read][source]));
    const spread = group === null ? mean(model.spread[read][source]) : model.spread[read][source][group];
    const what = { weight: "weight", relative: "relative weight", share: "share", spread: "spread" }[view.quantity];
    lines.push(make("div", {},
      `${label(m)}: ${model.reads[read]} reads ${model.sources[source]}, ${what} `, value,
      ` (${map.caption.textContent}). Over all tokens: spread ${fixed(spread)}, share ${fixed(model.share[read][source])}.`));
  });
  byId("readout").replaceChildren(...lines);
}

function placeCursor(map, m) {
  const shown = view.cell !== null && view.cell[0] < models[m].reads.length;
  map.cursor.setAttribute("visibility", shown ? "visible" : "hidden");
  if (!shown) return false;
  map.cursor.setAttribute("x", map.left + view.cell[1] * map.size);
  map.cursor.setAttribute("y", map.top + view.cell[0] * map.size);
  return true;
}

/* ---- tokens and choices ---- */

// what has no shape of its own gets a sign: a newline, a tab, other controls, spaces alone, nothing at all
const visible = (word) => word.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5").replace(/[\0-\x1f]/g,
  (c) => String.fromCharCode(0x2400 + c.charCodeAt(0))).replace(/^\s+$/, (s) => "\u2423".repeat(s.length)) || "\u2205";

function buildTokens() {
  const { words, kept, rows, length } = report.text, place = byId("tokens");
  const buttons = words.slice(0, kept).map((word, i) => {
    const button = make("button", { type: "button", "data-token": i, tabindex: i ? -1 : 0, "aria-pressed": "false",
      title: `token ${i}` }, visible(word));
    button.addEventListener("click", () => choose({ token: view.token === i ? null : i, peek: null }));
    button.addEventListener("pointerenter", () => choose({ peek: i }));
    button.addEventListener("pointerleave", () => choose({ peek: null }));
    return button;
  });
  place.append(...buttons);
  if (words.length > kept) place.append(make("span", { class: "rest" }, words.slice(kept).join("")));
  place.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (at < 0 || !step) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, at + step))];
    buttons[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  const more = rows > 1 ? ` Of the ${rows} windows of ${length} tokens, all of which count in every mean, this is the first.` : "";
  const some = kept < length ? ` Weights of single tokens are kept for the first ${kept} only.` : "";
  byId("text-note").textContent = `The text, by tokens.${more}${some}`;
  byId("token").append(make("option", { value: "" }, "mean over tokens"),
    ...words.slice(0, kept).map((word, i) => make("option", { value: i }, `${i}: ${visible(word)}`)));
  return buttons;
}
const tokenButtons = buildTokens();

function choose(change) {
  Object.assign(view, change);
  tokenButtons.forEach((button, i) => button.setAttribute("aria-pressed", String(view.token === i)));
  byId("token").value = view.token === null ? "" : view.token;
  byId("state").textContent = overTokens() && (view.token !== null || (view.quantity === "share" && view.group !== null))
    ? `This quantity is over all tokens${view.quantity === "share" ? " and groups" : ""}: the choice of a ${view.token !== null ? "token" : "group"} waits.` : "";
  drawMaps();
}

function buildChoices() {
  const groups = Math.max(...models.map((model) => model.groups));
  byId("group").append(make("option", { value: "" }, groups > 1 ? "mean of groups" : "one for all channels"),
    ...(groups > 1 ? [...Array(groups).keys()].map((g) => make("option", { value: g }, `group ${g}`)) : []));
  const number = (value) => (value === "" ? null : Number(value));
  byId("token").addEventListener("change", (e) => choose({ token: number(e.target.value), peek: null }));
  byId("group").addEventListener("change", (e) => { choose({ group: number(e.target.value) }); fade(); });
  byId("quantity").addEventListener("change", (e) => choose({ quantity: e.target.value }));
  byId("centre").addEventListener("change", (e) => choose({ centre: Number(e.target.value) }));
  byId("scale").addEventListener("change", (e) => choose({ scale: e.target.value }));
  if (models.length === 1) byId("scale").parentElement.remove();
  document.addEventListener("keydown", (e) => { if (e.key === "Escape") choose({ token: null, peek: null }); });
}

/* ---- by depth ---- */

function curves(model, panel) {
  const at = (row, path) => {
    const value = path.split(".").reduce((part, key) => (part === undefined ? part : part[key]), row);
    return value === undefined ? [] : Array.isArray(value) ? value : [value];
  };
  return panel.series.flatMap(([name, path], series) => {
    const points = model[panel.rows].map((row, i) =>
      [panel.rows === "writes" ? model.sources.indexOf(row.source) : i, at(row, path)]).filter(([, v]) => v.length);
    const groups = points.length ? points[0][1].length : 0;
    return [...Array(groups).keys()].map((g) => ({
      name, series, group: groups > 1 ? g : null, points: points.map(([depth, values]) => [depth, values[g]]),
    }));
  });
}

function extent(found, log) {
  const values = found.flatMap((lines) => lines.flatMap((line) => line.points.map(([, y]) => y)));
  let low = Math.min(...values), high = Math.max(...values);
  if (log && low > 0) {
    // whole decades need two of them to be an axis; less is drawn in proportion
    if (high / low >= 10) return { log: true, low: Math.log10(low), high: Math.log10(high) };
  }
  if (low > 0 && low < 0.6 * high) low = 0;
  if (high === low) { high += Math.abs(high) * 0.1 || 1; low -= Math.abs(low) * 0.1 || 0; }
  const edge = (high - low) * 0.04;
  return { log: false, low: low === 0 ? 0 : low - edge, high: high + edge };
}

function heights({ log, low, high }) {
  if (log) {
    const step = Math.max(1, Math.ceil((high - low) / 5)), within = high - low < 2.5 ? [1, 2, 5] : [1], marks = [];
    for (let d = Math.floor(low); d <= Math.ceil(high); d += step) {
      marks.push(...within.map((s) => [d + Math.log10(s), brief(Number(`${s}e${d}`))]));
    }
    return marks.filter(([level]) => level >= low - 1e-9 && level <= high + 1e-9);
  }
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= raw) * power;
  const marks = [], digits = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9) + (step / power === 2.5 ? 1 : 0));
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) {
    const text = digits > 6 || high >= 1e5 ? brief(i * step) : (i * step).toFixed(digits);
    marks.push([i * step, (Number(text) === 0 ? "0" : text).replace("-", "\u2212")]);
  }
  return marks;
}

const W = 380, H = 190, L = 52, R = 8, T = 8, B = 24;

function buildAxes(names, scale) {
  const n = names.length, x = (i) => L + ((i + 0.5) / n) * (W - L - R);
  const y = (v) => {
    const level = scale.log ? Math.log10(v) : v;
    return H - B - ((level - scale.low) / (scale.high - scale.low)) * (H - B - T);
  };
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, tabindex: 0, role: "img" });
  for (const [level, text] of heights(scale)) {
    const at = H - B - ((level - scale.low) / (scale.high - scale.low)) * (H - B - T);
    svg.append(make("line", { x1: L, x2: W - R, y1: at, y2: at, class: "grid" }),
      make("text", { x: L - 5, y: at + 4, "text-anchor": "end", class: "small" }, text));
  }
  for (const [i, name] of ticks(names, (W - L - R) / n)) {
    svg.append(make("text", { x: x(i), y: H - 8, "text-anchor": "middle", class: "small" }, name));
  }
  svg.append(make("path", { d: `M${L} ${T}V${H - B}H${W - R}`, class: "axis" }));
  return { svg, x, y };
}

const groupColour = (g) => `var(--c${g % 8})`;

function buildPanel(m, panel, lines, scale) {
  const model = models[m], names = panel.rows === "writes" ? model.sources : model.reads;
  const { svg, x, y } = buildAxes(names, scale);
  for (const line of lines) {
    const stroke = line.group === null ? groupColour(panel.series.length > 1 ? line.series : 0) : groupColour(line.group);
    const shared = { "data-group": line.group === null ? "" : line.group };
    const d = line.points.map(([i, v], k) => `${k ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    svg.append(make("path", { d, class: "curve", style: `stroke:${stroke}`, "stroke-dasharray": DASHES[line.series], ...shared }));
    if (line.points.length < 20) line.points.forEach(([i, v]) => svg.append(
      make("circle", { cx: x(i), cy: y(v), r: 2, class: "dot", style: `fill:${stroke}`, ...shared })));
  }
  const hair = make("line", { y1: T, y2: H - B, class: "hair", visibility: "hidden" });
  const values = make("div", { class: "values", "aria-live": "polite" });
  svg.append(hair);
  svg.setAttribute("aria-label", `${panel.title} of ${label(m)} by depth. Left and right arrow keys show the numbers.`);
  let at = 0;
  const show = (i) => {
    at = Math.max(0, Math.min(names.length - 1, i));
    hair.setAttribute("x1", x(at));
    hair.setAttribute("x2", x(at));
    hair.setAttribute("visibility", "visible");
    values.textContent = `${names[at]}: ${tellDepth(panel, lines, at)}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), px = ((event.clientX - box.left) / box.width) * W;
    show(Math.floor(((px - L) / (W - L - R)) * names.length));
  });
  svg.addEventListener("focus", () => show(at));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); show(at + step); }
  });
  const title = models.length > 1 ? [make("h3", {}, label(m))] : [];
  return make("figure", {}, ...title, svg, seriesLegend(panel, lines), values, numbers(panel, lines, names));
}

function tellDepth(panel, lines, depth) {
  const parts = panel.series.map(([name], series) => {
    const found = lines.filter((line) => line.series === series)
      .map((line) => line.points.find(([i]) => i === depth)).filter(Boolean).map(([, v]) => brief(v));
    return found.length ? `${name ? `${name} ` : ""}${found.join(", ")}` : "";
  });
  return parts.filter(Boolean).join("; ") || "none here";
}

function seriesLegend(panel, lines) {
  const grouped = lines.some((line) => line.group !== null);
  const entries = panel.series.filter(([name]) => name).map(([name], i) => make("span",
    { style: `--dash:${BORDERS[i]};--colour:${grouped ? "var(--soft)" : groupColour(i)}` }, name));
  return make("div", { class: "legend" }, ...entries);
}

function numbers(panel, lines, names) {
  const details = make("details", {}, make("summary", {}, "numbers"));
  details.addEventListener("toggle", () => {
    if (details.children.length > 1) return;
    const header = ["", ...lines.map((line) => [line.name, line.group === null ? "" : `group ${line.group}`].filter(Boolean).join(", ") || panel.title)];
    const rows = names.map((name, i) => [name, ...lines.map((line) => {
      const found = line.points.find(([depth]) => depth === i);
      return found ? brief(found[1]) : "";
    })]);
    details.append(make("div", { class: "scroll" }, table(header, rows)));
  });
  return details;
}

function buildPanels() {
  const place = byId("panels");
  for (const panel of panels) {
    const found = models.map((model) => curves(model, panel));
    if (!found.some((lines) => lines.length)) continue;
    const scale = extent(found, panel.log);
    const drawn = found.map((lines, m) => (lines.length ? buildPanel(m, panel, lines, scale) : null)).filter(Boolean);
    const missing = models.map((_, m) => m).filter((m) => !found[m].length).map((m) => models[m].stream.name);
    const heading = make("h3", {}, `${panel.title} `, make("span", { class: "equation" }, panel.equation));
    const lack = missing.length ? [make("p", { class: "note" }, `not in: ${[...new Set(missing)].join(", ")}`)] : [];
    place.append(make("div", { class: drawn.length > 1 ? "panel wide" : "panel", "data-panel": panel.title }, heading, make("div", { class: "columns" }, ...drawn), ...lack));
  }
  const groups = Math.max(...models.map((model) => model.groups));
  if (groups > 1) byId("legend").append(...[...Array(groups).keys()].map((g) =>
    make("span", { style: `--colour:${groupColour(g)}` }, `group ${g}`)));
}

function fade() {
  document.querySelectorAll("#panels [data-group]").forEach((node) => {
    const group = node.dataset.group;
    node.classList.toggle("faint", view.group !== null && group !== "" && Number(group) !== view.group);
  });
}

/* ---- ablation ---- */

function table(header, rows, words = -1) {
  const line = (tag, cells) => make("tr", {}, ...cells.map((cell, i) =>
    make(tag, i === words ? { class: "words" } : {}, cell)));
  return make("table", {}, make("thead", {}, line("th", header)), make("tbody", {}, ...rows.map((row) => line("td", row))));
}

function signed(x) {
  const size = fixed(Math.abs(x));
  return Number(size) === 0 ? size : `${x < 0 ? "\u2212" : "+"}${size}`;
}

function buildAblation() {
  const able = models.map((model, m) => [model, m]).filter(([model]) => model.ablation);
  if (!able.length) { byId("ablation").remove(); return; }
  for (const [model, m] of able.filter(([model]) => model.ablation.rows.length)) {
    const points = model.ablation.rows.map((row) => [model.reads.indexOf(row.read), row.difference]);
    const all = points.map(([, v]) => v), low = Math.min(0, ...all), high = Math.max(0, ...all);
    const edge = (high - low || 1) * 0.05;
    const { svg, x, y } = buildAxes(model.reads, { log: false, low: low - (low < 0 ? edge : 0), high: high + edge });
    const wide = Math.max(((W - L - R) / model.reads.length) * 0.75, 1.5);
    points.forEach(([i, v]) => svg.append(make("rect", { x: x(i) - wide / 2, width: wide, y: Math.min(y(v), y(0)),
      height: Math.max(Math.abs(y(v) - y(0)), 0.5), style: `fill:var(--c${v < 0 ? 0 : 3})` },
      make("title", {}, `${model.reads[i]}: ${signed(v)}`))));
    svg.append(make("line", { x1: L, x2: W - R, y1: y(0), y2: y(0), class: "zero" }));
    svg.setAttribute("aria-label", `Loss added by switching off each read of ${label(m)}; the table has the numbers.`);
    svg.removeAttribute("tabindex");
    byId("bars").append(make("figure", {}, make("h3", {}, label(m)), svg, make("p", { class: "note" }, "nats per token more than with every read on")));
  }
  buildLosses(able);
}

function buildLosses(able) {
  const names = able.map(([model]) => model.reads).reduce((a, b) => (b.length > a.length ? b : a));
  const one = able.length === 1;
  const header = ["read switched off", ...able.flatMap(([, m]) => (one ? ["loss", "difference"] : [`${label(m)}: loss`, "difference"])), ...(one ? ["the sublayer sees"] : [])];
  const cells = (pick) => able.flatMap(([model]) => {
    const loss = pick(model.ablation);
    return loss === undefined || loss === null ? ["\u2013", ""] : [fixed(loss), signed(loss - model.ablation.loss)];
  });
  const first = able.flatMap(([model]) => [fixed(model.ablation.loss), ""]);
  const row = (name, read) => [name, ...cells((found) => (found.rows.find((r) => r.read === read) || {}).loss),
    ...(one ? [(able[0][0].ablation.rows.find((r) => r.read === read) || {}).instead || ""] : [])];
  const rest = one ? [""] : [];
  const rows = [["none", ...first, ...rest],
    ...names.filter((read) => able.some(([model]) => model.ablation.rows.some((r) => r.read === read))).map((read) => row(read, read)),
    ["every one of these", ...cells((found) => found.every), ...rest]];
  const built = table(header, rows, one ? header.length - 1 : -1);
  built.id = "losses";
  built.querySelectorAll("tbody tr").forEach((tr, i) => { if (i === 0 || i === rows.length - 1) tr.className = "total"; });
  byId("losses").replaceWith(built);
  const notes = able.flatMap(([model, m]) => {
    const by = new Map();
    for (const [read, why] of Object.entries(model.ablation.left_out)) by.set(why, [...(by.get(why) || []), read]);
    const left = [...by].map(([why, reads]) => `${reads.length > 4 ? `${reads.length} reads` : reads.join(", ")}: ${why}`);
    const sees = one ? [] : [...new Set(model.ablation.rows.map((r) => r.instead))].map((words) => `a read switched off sees ${words}`);
    return [...sees, ...(left.length ? [`left out, ${left.join("; ")}`] : [])].map((text) => make("p", {}, `${label(m)}: ${text}.`));
  });
  byId("left-out").append(...notes);
}

/* ---- the rest ---- */

function buildHead() {
  const { rows, length } = report.text;
  byId("title").textContent = report.title;
  byId("summary").textContent = `${count(rows, "window")} of ${count(length, "token")}.`;
  const facts = models.map((model) => [model.name, model.stream.name, String(model.reads.length - 1), String(model.groups),
    model.parameters.toLocaleString("en"), model.ablation ? fixed(model.ablation.loss) : "\u2013"]);
  const built = table(["model", "stream", "sublayers", "groups", "parameters", "nats per token"], facts);
  built.id = "models";
  byId("models").replaceWith(built);
  byId("configurations").append(...models.flatMap((model, m) => {
    const fields = Object.entries(model.stream).filter(([key]) => key !== "name").map(([key, value]) => `${key} ${value}`);
    return fields.length ? [make("p", {}, `${label(m)}: ${fields.join(", ")}.`)] : [];
  }));
}

function buildNotes() {
  const { kept } = report.text, all = report.text.rows * report.text.length;
  const memory = models.some((model) => model.writes.length);
  const lines = [
    "Weights: with all mixing coefficients held fixed, the input of a read is linear in the sources, and its derivative with respect to a source is the weight. It is exact, not an attribution.",
    `Means, spreads (standard deviations) and shares are over ${count(all, "token")} and kept to 6 digits; weights of single tokens are those of the first ${kept}, in steps of 1/32767 of the largest of their row.`,
    "Share: the length of one term |w v| over that of the whole input |x|. Terms may cancel, so that shares need not add up to 1.",
    ...(memory ? ["Prediction error, condition of P and size of M: the memory is written once more in float64, one write at a time, from the keys, importances and forgetting of this run. The first write has error 1, since nothing predicts it."] : []),
    "The same numbers, unrounded by this page, are in inspect.json; docs/inspection.md explains each picture.",
  ];
  byId("notes").append(...lines.map((line) => make("li", {}, line)));
}

buildHead();
buildChoices();
buildPanels();
buildAblation();
buildNotes();
choose({});
dark.addEventListener("change", drawMaps);
addEventListener("beforeprint", () => { printing = true; drawMaps(); });
addEventListener("afterprint", () => { printing = false; drawMaps(); });
