// The controls: filters and axes, and the legend, whose entries are filters.

class Controls {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.boxes = model.axes.filter((axis) => axis.isFilter).map((axis) => this.filter(axis));
    const { labels } = model;
    this.selects = Object.keys(model.options).map((name) => this.select(name, labels[name]));
    const reset = button(labels.reset, () => this.reset());
    const filters = element("div", { class: "dsnb-filters" }, ...this.boxes.map((box) => box.node));
    const fields = element("div", { class: "dsnb-fields" }, ...this.selects.map((one) => one.node), reset);
    this.node = element("div", { class: "dsnb-controls" }, filters, fields);
  }

  // Several values of one setting can be chosen; none chosen means all.
  filter(axis) {
    const inputs = axis.values.map(() => element("input", { type: "checkbox", onchange: () => this.chooseValues(axis, inputs) }));
    const labels = axis.labels.map((label, code) => element("label", { class: "dsnb-chip", title: label }, inputs[code], element("span", {}, label)));
    return { axis, inputs, labels, node: element("fieldset", {}, element("legend", {}, axis.title), ...labels) };
  }

  chooseValues(axis, inputs) {
    this.set({ [axis.name]: axis.values.filter((value, code) => inputs[code].checked) });
  }

  select(name, label) {
    const title = (value) => (name.endsWith("_scale") ? value : this.model.heading(value));
    const options = this.model.options[name].map((value) => element("option", { value }, title(value)));
    const input = element("select", { onchange: () => this.set({ [name]: input.value }), disabled: !options.length }, ...options);
    return { name, input, node: field(label, input) };
  }

  reset() {
    const { model, state } = this;
    this.set({ ...model.defaults, ...model.cleared(state), task: state.task });
  }

  show(state) {
    this.state = state;
    const runs = this.model.runsOf(this.model.task(state));
    for (const { axis, inputs, labels, node } of this.boxes) {
      const codes = runs.map((run) => axis.codes[run]).concat(this.model.predictions.codesOf(axis, { task: state.task }));
      const present = new Set(codes); // values of other tasks are not offered
      labels.forEach((label, code) => {
        label.hidden = !present.has(code);
      });
      node.hidden = !isChoice(axis, codes);
      inputs.forEach((input, code) => {
        input.checked = state[axis.name].includes(axis.values[code]);
      });
    }
    for (const { name, input } of this.selects) input.value = state[name] ?? "";
    this.selects.find(({ name }) => name === "x_scale").input.disabled = this.model.axis.has(state.x); // settings have no scale
  }
}

// The values that occur among the runs which pass the other filters.
const legendEntries = (model, state) => {
  const axis = model.axis.get(state.colour);
  const others = { ...state, [axis.name]: [] };
  const present = new Set([...model.filtered(others).map((run) => axis.codes[run]), ...model.predictions.codesOf(axis, others)]);
  return axis.labels
    .map((label, code) => ({ label, code, value: axis.values[code], shape: axis.shapes[code], fill: axis.colours[code] }))
    .filter(({ code }) => present.has(code));
};

// The statuses of runs that are not ok.
const statusEntries = (model, runs) => {
  const codes = new Set(runs.filter((run) => !model.ok[run]).map((run) => model.status.codes[run]));
  const label = (code) => `not ok: ${model.status.labels[code]}`;
  return [...codes].sort((a, b) => a - b).map((code) => ({ label: label(code), shape: "cross", fill: model.status.colours[code] }));
};

class Legend {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.node = element("ul", { class: "dsnb-legend" });
  }

  // A press shows the runs of this value alone, or those of several; a second press takes it out again.
  toggle(axis, value) {
    const chosen = this.state[axis.name];
    const values = chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value];
    this.set({ [axis.name]: axis.values.filter((one) => values.includes(one)) });
  }

  show(state, runs) {
    this.state = state;
    const axis = this.model.axis.get(state.colour);
    const focused = [...this.node.querySelectorAll("button")].indexOf(document.activeElement);
    const entries = legendEntries(this.model, state).map(({ label, value, shape, fill }) => {
      const chosen = state[axis.name].includes(value);
      const entry = button(mark(shape, fill), () => this.toggle(axis, value), { "aria-pressed": String(chosen), title: `Only ${label}` });
      entry.append(label);
      return element("li", {}, entry);
    });
    const others = [...statusEntries(this.model, runs), ...this.model.predictions.legend(state)];
    const statuses = others.map(({ label, shape, fill, hollow }) => element("li", {}, mark(shape, fill, hollow), label));
    this.node.replaceChildren(element("li", { class: "dsnb-soft" }, `${axis.title}:`), ...entries, ...statuses);
    this.node.querySelectorAll("button")[focused]?.focus();
  }
}
