// What a step's time and a GPU's memory consist of, as stacked bars with their figures in words.

// One bar: parts {title, value, colour} as shares of `scale`; what is 0 or unknown is left out.
const stackedBar = (title, parts, scale, text) => {
  const known = parts.filter(({ value }) => value > 0);
  if (!known.length) return null;
  const pieces = known.map(({ title: name, value, colour }) => {
    const piece = element("span", { title: `${name}: ${text(value)}` });
    piece.style.background = colour;
    piece.style.width = `${(100 * value) / scale}%`;
    return piece;
  });
  const items = known.map(({ title: name, value, colour }) => element("li", {}, mark("square", colour), `${name} ${text(value)}`));
  return element(
    "div", { class: "dsnb-stack" }, element("h4", {}, title), element("div", { class: "dsnb-pieces", "aria-hidden": "true" }, ...pieces),
    element("ul", { class: "dsnb-legend" }, ...items),
  );
};

const total = (parts) => parts.reduce((sum, { value }) => sum + (value > 0 ? value : 0), 0);

// The parts of a profiled step, and the communication that nothing else hid.
const stepAnatomy = (model, run) => {
  const measured = model.anatomy.steps[run];
  if (!measured) return null;
  const parts = model.anatomy.stepParts.map(({ name, title, colour }) => ({ title, colour, value: measured[name] ?? 0 }));
  const text = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;
  const scale = total(parts);
  const exposed = { title: "exposed communication", colour: model.colours.exposed, value: measured.exposed_communication_s ?? 0 };
  return [stackedBar("Parts of a profiled step", parts, scale, text), stackedBar("Of it, communication that nothing hides", [exposed], scale, text)];
};

// Memory as measured and in theory, on one scale.
const memoryAnatomy = (model, run) => {
  const measured = (name) => model.columns.get(name)?.[run] ?? NaN;
  const [allocated, reserved, device] = ["peak_allocated_gib", "peak_reserved_gib", "device_memory_gib"].map(measured);
  const own = model.anatomy.theory[model.experiments.names[model.experiments.codes[run]]] ?? {};
  const [first, second, third] = model.anatomy.memoryParts;
  const above = (value, below) => (Number.isNaN(value) ? 0 : value - (Number.isNaN(below) ? 0 : below));
  const bars = [
    ["Memory, measured", [
      { title: "allocated", colour: first.colour, value: above(allocated, 0) },
      { title: "reserved, unused", colour: second.colour, value: above(reserved, allocated) },
      { title: "CUDA context and others", colour: third.colour, value: above(device, Number.isNaN(reserved) ? allocated : reserved) },
    ]],
    ["Memory allocated, in theory", model.anatomy.memoryParts.map(({ name, title, colour }) => ({ title, colour, value: own[name] ?? 0 }))],
  ];
  const scale = Math.max(...bars.map(([, parts]) => total(parts)));
  return bars.map(([title, parts]) => stackedBar(title, parts, scale, (gib) => `${gib.toFixed(2)} GiB`));
};

// Everything that was measured of a run, in its display units.
const runFigures = (model, run, state) => {
  const known = model.figures.filter(({ name }) => !Number.isNaN(model.values(name, state)[run]));
  const items = known.map(({ name }) => element("div", {}, element("dt", {}, model.heading(name)), element("dd", {}, model.number(name, model.values(name, state)[run]))));
  return known.length ? element("dl", { class: "dsnb-facts" }, ...items) : null;
};
