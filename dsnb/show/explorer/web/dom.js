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

// A table that scrolls sideways.
const scrollTable = (caption, heads, rows, style) => {
  const parts = [element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)];
  return element("div", { class: `dsnb-scroll ${style}`, tabindex: "0", role: "region", "aria-label": caption }, element("table", {}, ...parts));
};

// The marks of the charts as characters, for legends.
const MARKS = { circle: "●", square: "■", diamond: "◆", "triangle-up": "▲", "triangle-down": "▼", "triangle-right": "►", cross: "✕", hollow: "○" };

const mark = (shape, colour) => element("span", { class: "dsnb-mark", style: `color: ${colour}`, "aria-hidden": "true" }, MARKS[shape]);

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
