// Helpers that build DOM nodes. Text is only ever set as text, never as HTML.

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

// A count with its noun: "1 run", "2 runs".
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

// A new id. In a notebook, every widget loads this script anew, so a count alone would not be unique in the document.
const LOADED = Math.random().toString(36).slice(2, 8);
let ids = 0;
const newId = () => {
  ids += 1;
  return `dsnb-${LOADED}-${ids}`;
};

// A control below its label.
const field = (label, input) => {
  input.id = newId();
  return element("div", { class: "dsnb-field" }, element("label", { for: input.id }, label), input);
};

// A mark as drawn in the charts, for legends: shape and colour.
const mark = (shape, colour, hollow = false) => {
  const paths = {
    circle: "M6 1.5a4.5 4.5 0 1 0 .01 0z", square: "M2 2h8v8h-8z", diamond: "M6 .8l4 5.2-4 5.2-4-5.2z",
    "triangle-up": "M6 1.5l5 9h-10z", "triangle-down": "M6 10.5l5-9h-10z", "triangle-right": "M10.5 6l-9 5v-10z",
    cross: "M2.5 1L6 4.5 9.5 1 11 2.5 7.5 6 11 9.5 9.5 11 6 7.5 2.5 11 1 9.5 4.5 6 1 2.5z",
  };
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  for (const [name, value] of [["viewBox", "0 0 12 12"], ["width", "12"], ["height", "12"], ["aria-hidden", "true"]]) {
    svg.setAttribute(name, value);
  }
  path.setAttribute("d", paths[shape]);
  path.setAttribute("fill", hollow ? "none" : colour);
  if (hollow) path.setAttribute("stroke", colour);
  svg.append(path);
  return svg;
};
