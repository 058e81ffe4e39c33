// Saving what is shown: tables as CSV, charts as PNG with a legend and a line that says what was measured.

const saveFile = (name, content) => {
  const url = URL.createObjectURL(content);
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

const fileName = (what, ending) => `${`${document.title} ${what}`.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-/, "").slice(0, 100)}.${ending}`;

// The text of a CSV file. `formula` is where a spreadsheet could begin one in a text: an apostrophe stops it.
const csv = (lines, formula) => {
  const disarmed = (text) => text.replace(new RegExp(formula, "g"), (_, before = "") => `${before}'`);
  const cell = (value) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    const text = typeof value === "string" ? disarmed(value) : String(value);
    return /[",;\n\r]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
};

const saveCsv = (what, lines, formula) => saveFile(fileName(what, "csv"), new Blob([csv(lines, formula)], { type: "text/csv;charset=utf-8" }));

const LINE = 18;
const PIXELS = 2; // of a picture for each of the page

// A chart between its title and a legend, an entry a line, and what was measured with what. Long lines are condensed.
const chartCanvas = async (chart, { title, legend, cite }) => {
  const plot = await chart.view.toCanvas(PIXELS);
  const canvas = element("canvas", { width: plot.width, height: plot.height + (legend.length + 3) * LINE * PIXELS });
  const pen = canvas.getContext("2d");
  const { fontFamily, color, backgroundColor } = getComputedStyle(chart.node.closest(".dsnb-card"));
  pen.fillStyle = backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(plot, 0, LINE * PIXELS);
  pen.scale(PIXELS, PIXELS);
  const write = (text, left, top, font = "12px", colour = color) => {
    [pen.font, pen.fillStyle] = [`${font} ${fontFamily}`, colour];
    pen.fillText(text, left, top, plot.width / PIXELS - left - 10);
  };
  write(title, 10, LINE, "600 14px");
  const below = plot.height / PIXELS + 2 * LINE;
  legend.forEach(({ label, shape, fill }, line) => {
    write(MARKS[shape], 10, below + line * LINE, "12px", fill === "inherit" ? color : fill);
    write(label, 26, below + line * LINE);
  });
  write(cite, 10, below + legend.length * LINE, "11px");
  return canvas;
};

// `describe()` returns the texts in a saved picture: { title, legend, cite }.
const saveButton = (chart, describe) => {
  const save = async () => (await chartCanvas(chart, describe())).toBlob((png) => saveFile(fileName(chart.title ?? chart.label, "png"), png), "image/png");
  return button("Save as PNG", save, { class: "dsnb-save", "aria-label": `Save as PNG: ${chart.label}` });
};
