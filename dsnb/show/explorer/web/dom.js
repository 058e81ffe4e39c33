// Helpers that build DOM nodes and write numbers. Text is only ever set as text, never as HTML.

const element = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child || child === 0));
  return node;
};

const box = (style, ...children) => element("div", { class: style }, ...children);
const button = (label, onclick, attributes = {}) => element("button", { type: "button", onclick, ...attributes }, label);
const soft = (text = "", attributes = {}) => element("p", { class: "dsnb-soft", ...attributes }, text);
const card = (title, ...children) => element("section", { class: "dsnb-card" }, element("h3", {}, title), ...children);

// A new id: not a count, since in a notebook every widget loads this script anew.
const newId = () => `dsnb-${Math.random().toString(36).slice(2)}`;

const options = (entries) => entries.map(([value, text]) => element("option", { value }, text));

// A choice of one of some options, as [value, text]; `changed(value)` is called after a choice.
const select = (changed, entries = []) =>
  element("select", { onchange: ({ target }) => changed(target.value) }, options(entries));

const field = (label, input) => {
  input.id = newId();
  return box("dsnb-field", element("label", { for: input.id }, label), input);
};

const heading = (text, isText) => element("th", { scope: "col", class: isText ? "dsnb-text" : null }, text);

const tableRow = (title, texts, style = null) => {
  const cells = texts.map((text) => element("td", {}, text));
  return element("tr", { class: style }, element("th", { scope: "row" }, title), ...cells);
};

const scrollTable = (caption, heads, rows, style) => {
  const head = element("thead", {}, element("tr", {}, heads));
  const body = element("tbody", {}, rows);
  const table = element("table", {}, element("caption", {}, caption), head, body);
  const region = { tabindex: "0", role: "region", "aria-label": caption };
  return element("div", { class: `dsnb-scroll ${style}`, ...region }, table);
};

const MARKS = { circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", "triangle-down": "▼", "triangle-right": "►", cross: "✕", hollow: "○", star: "★", ring: "◯" };
const STAR = "#e69f00";

const mark = (shape, colour) => element("span", { class: "dsnb-mark", style: `color: ${colour}`, "aria-hidden": "true" }, MARKS[shape]);

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// Numbers are rounded as they are stored and not as they are printed, as Python does: 4.585 is a little less, so 4.58.
const formats = new Map();
const formatted = (value, options) => {
  const key = JSON.stringify(options);
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en-US", options));
  return formats.get(key).format(Number(value).toPrecision(100));
};

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

const joined = (texts, mark = " ") => texts.filter(Boolean).join(mark);
const cut = (line) => (line.length > 160 ? `${line.slice(0, 159)}…` : line);
