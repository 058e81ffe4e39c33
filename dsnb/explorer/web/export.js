// Saving what is shown: tables as CSV, charts as PNG with a legend and a line that says what was measured.

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

const LINE = 18;
const PIXELS = 2; // of a picture for each of the page

// A chart between its title and legend and a line that says what was measured.
const chartCanvas = async (chart, { title, task, legend, cite }) => {
  const plot = await chart.view.toCanvas(PIXELS);
  const [width, height] = [plot.width / PIXELS, plot.height / PIXELS];
  const canvas = element("canvas");
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(chart.canvas);
  const font = (kind) => `${kind} ${style.fontFamily}`;
  const texts = []; // of the legend and around it: { text, left, line, kind }, and of an entry its mark
  let line = 0;
  // Write texts one after another, in as many lines as they need.
  const write = (entries, kind) => {
    pen.font = font(kind);
    let left = 10;
    line += 1;
    for (const { label, ...marked } of entries) {
      const room = pen.measureText(`${label} `).width + (marked.shape ? 28 : 0);
      if (left > 10 && left + room > width) [left, line] = [10, line + 1];
      texts.push({ label, left, line, kind, ...marked });
      left += room;
    }
  };
  const words = (text) => text.split(" ").map((label) => ({ label }));
  write(words([task, title].filter(Boolean).join(": ")), "600 14px");
  if (legend.length) write(legend, "12px");
  const above = line;
  write(words(cite), "11px");
  [canvas.width, canvas.height] = [width * PIXELS, (height + (line + 1) * LINE) * PIXELS];
  pen.scale(PIXELS, PIXELS);
  pen.fillStyle = style.getPropertyValue("--dsnb-card");
  pen.fillRect(0, 0, width, canvas.height);
  pen.drawImage(plot, 0, (above + 0.5) * LINE, width, height);
  for (const { label, left, line: at, kind, shape, fill: colour, hollow } of texts) {
    const top = at * LINE + (at > above ? height : 0);
    if (shape) {
      const path = new Path2D();
      path.addPath(new Path2D(MARKS[shape]), new DOMMatrix([1, 0, 0, 1, left, top - 11]));
      [pen.fillStyle, pen.strokeStyle] = [colour, colour];
      if (hollow) pen.stroke(path);
      else pen.fill(path);
    }
    [pen.font, pen.fillStyle] = [font(kind), style.getPropertyValue("--dsnb-ink")];
    pen.fillText(label, left + (shape ? 16 : 0), top);
  }
  return canvas;
};

// `describe()` returns what a saved picture says besides: { title, task, legend, cite }.
const saveButton = (chart, describe) => {
  const save = async () => (await chartCanvas(chart, describe())).toBlob((png) => saveFile(fileName(describe().title, "png"), png), "image/png");
  return button("Save as PNG", save, { class: "dsnb-save", "aria-label": `Save as PNG: ${chart.label}` });
};
