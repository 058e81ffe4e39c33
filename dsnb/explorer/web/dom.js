// Helpers that build DOM nodes and write numbers. Text is only ever set as text, never as HTML.

const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
};

const button = (label, onclick, attributes = {}) => element("button", { type: "button", onclick, ...attributes }, label);

const soft = (text = "", attributes = {}) => element("p", { class: "dsnb-soft", ...attributes }, text);

const card = (title, ...children) => element("section", { class: "dsnb-card" }, element("h3", {}, title), ...children);

// A new id. In a notebook, every widget loads this script anew, so a count would not be unique in the document.
const newId = () => `dsnb-${Math.random().toString(36).slice(2)}`;

// A control below its label.
const field = (label, input) => {
  input.id = newId();
  return element("div", { class: "dsnb-field" }, element("label", { for: input.id }, label), input);
};

const heading = (text, isText) => element("th", { scope: "col", class: isText ? "dsnb-text" : null }, text);

const tableRow = (title, texts, style = null) =>
  element("tr", { class: style }, element("th", { scope: "row" }, ...[title].flat()), ...texts.map((text) => element("td", {}, ...[text].flat())));

// A table that scrolls sideways in a region of its own.
const scrollTable = (caption, heads, rows, style) => {
  const parts = [element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)];
  return element("div", { class: `dsnb-scroll ${style}`, tabindex: "0", role: "region", "aria-label": caption }, element("table", {}, ...parts));
};

// A mark as drawn in the charts, for legends: shape and colour.
const MARKS = {
  circle: "M6 1.5a4.5 4.5 0 1 0 .01 0z", square: "M2 2h8v8h-8z", diamond: "M6 .8l4 5.2-4 5.2-4-5.2z",
  "triangle-up": "M6 1.5l5 9h-10z", "triangle-down": "M6 10.5l5-9h-10z", "triangle-right": "M10.5 6l-9 5v-10z",
  cross: "M2.5 1L6 4.5 9.5 1 11 2.5 7.5 6 11 9.5 9.5 11 6 7.5 2.5 11 1 9.5 4.5 6 1 2.5z",
};

const mark = (shape, colour, hollow = false) => {
  const [svg, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  const set = (node, attributes) => Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
  set(svg, { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" });
  set(path, { d: MARKS[shape], fill: hollow ? "none" : colour, stroke: hollow ? colour : "none" });
  svg.append(path);
  return svg;
};

// A count with its noun: "1 run", "2 runs".
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Numbers are rounded as they are stored and not as they are printed, as Python does: 4.585 is a little less, so 4.58.
const formats = new Map();
const formatted = (value, options) => {
  const key = JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en-US", options));
  return formats.get(key).format(Number(value).toPrecision(100));
};

// A number with a fixed number of decimal places.
const fixed = (value, places) => formatted(value, { minimumFractionDigits: places, maximumFractionDigits: places });

// A number with as many significant digits, or all before the point.
const significant = (value, digits = 3) =>
  formatted(value, { maximumSignificantDigits: digits, maximumFractionDigits: 0, roundingPriority: "morePrecision" });

const percent = (share) => `${significant(100 * share)} %`;

// A change or an end of its interval: one decimal place below 100; with its sign, unless it rounds to 0.
const signed = (value, plus = "") => {
  const text = fixed(Math.abs(value), Math.abs(value) < 99.95 ? 1 : 0);
  return text === "0.0" ? "0" : `${value < 0 ? "−" : plus}${text}`;
};

const cut = (line) => (line.length > 160 ? `${line.slice(0, 159)}…` : line);
