// Saving what is shown: tables as CSV, charts as SVG and PNG with a legend and a line that says what was measured.

const saveFile = (name, content) => {
  const url = URL.createObjectURL(content);
  const link = element("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60);

// A name for a file: the title of the page, what is saved, the ending.
const fileName = (what, ending) => `${[slug(document.title), slug(what)].filter(Boolean).join("-")}.${ending}`;

// Format one CSV cell; a text that a spreadsheet would evaluate as a formula is quoted.
const cell = (value) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  const text = typeof value === "string" && /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

const csv = (lines) => lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
const saveCsv = (what, lines) => saveFile(fileName(what, "csv"), new Blob([csv(lines)], { type: "text/csv;charset=utf-8" }));

// Break words into lines of at most `width` characters.
const wrapped = (text, width) => {
  const lines = [""];
  for (const word of text.split(" ")) {
    if (lines.at(-1) && lines.at(-1).length + word.length >= width) lines.push("");
    lines[lines.length - 1] += `${lines.at(-1) ? " " : ""}${word}`;
  }
  return lines;
};

const LINE = 17;

// A chart as one SVG document: title, legend, the chart itself, the citation.
const chartSvg = async (chart) => {
  const { title, legend, cite } = chart.about();
  const inner = new DOMParser().parseFromString(await chart.view.toSVG(), "image/svg+xml").documentElement;
  const [width, height] = ["width", "height"].map((name) => Number.parseFloat(inner.getAttribute(name)));
  const style = getComputedStyle(chart.canvas);
  const colour = (name) => style.getPropertyValue(`--dsnb-${name}`).trim();
  const parts = [];
  let top = 8;
  const write = (text, attributes) => {
    for (const line of wrapped(text, width / 6.4)) {
      top += LINE;
      parts.push(svgElement("text", { x: 10, y: top - 4, "font-size": 12, fill: colour("soft"), ...attributes }, line));
    }
  };
  write(title, { "font-size": 14, "font-weight": 600, fill: colour("ink") });
  let left = 10;
  if (legend.length) top += LINE;
  for (const { label, shape, fill, hollow } of legend) {
    const room = 26 + 6.4 * label.length;
    if (left + room > width && left > 10) [left, top] = [10, top + LINE];
    const drawn = mark(shape, fill, hollow);
    for (const [name, value] of [["x", left], ["y", top - 14]]) drawn.setAttribute(name, value);
    parts.push(drawn, svgElement("text", { x: left + 16, y: top - 4, "font-size": 12, fill: colour("ink") }, label));
    left += room;
  }
  inner.setAttribute("y", top + 4);
  parts.push(inner);
  top += 4 + height;
  write(cite, { "font-size": 11 });
  const outer = svgElement("svg", { xmlns: SVG, width, height: top + 8, viewBox: `0 0 ${width} ${top + 8}`, "font-family": "system-ui, sans-serif" });
  outer.append(svgElement("rect", { width: "100%", height: "100%", fill: colour("card") }), ...parts);
  return { text: new XMLSerializer().serializeToString(outer), width, height: top + 8 };
};

const chartPng = async (chart, scale = 2) => {
  const { text, width, height } = await chartSvg(chart);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = element("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};

// The two buttons of a chart, folded away.
const saveMenu = (chart) => {
  const svg = async () => saveFile(fileName(chart.about().title, "svg"), new Blob([(await chartSvg(chart)).text], { type: "image/svg+xml" }));
  const png = async () => saveFile(fileName(chart.about().title, "png"), await chartPng(chart));
  return element(
    "details", { class: "dsnb-more dsnb-save" }, element("summary", { "aria-label": `Save: ${chart.label}` }, "Save"),
    element("div", { class: "dsnb-bar" }, button("SVG", svg), button("PNG", png)),
  );
};
