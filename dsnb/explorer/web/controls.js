// The controls of a page. In JupyterLab, ipywidgets with the same labels replace them (dsnb/explorer/live.py).

class Controls {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.boxes = model.axes.filter((axis) => axis.isFilter).map((axis) => this.filter(axis));
    const { labels } = model;
    this.selects = Object.keys(model.options).map((name) => this.select(name, labels[name]));
    const reset = element("button", { type: "button", onclick: () => this.reset() }, labels.reset);
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
    this.set({ ...model.defaults, ...model.task(state)?.controls, task: state.task });
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
      node.hidden = !axis.isChoice(codes);
      inputs.forEach((input, code) => {
        input.checked = state[axis.name].includes(axis.values[code]);
      });
    }
    for (const { name, input } of this.selects) input.value = state[name] ?? "";
    this.selects.find(({ name }) => name === "x_scale").input.disabled = this.model.axis.has(state.x); // settings have no scale
  }
}

// The brushed region as four numbers, for the keyboard and for exact limits.
class Region {
  constructor(model, set) {
    Object.assign(this, { model, set });
    const { labels } = model;
    const input = () => element("input", { type: "number", step: "any", onchange: () => this.read() });
    this.inputs = { y: [input(), input()], x: [input(), input()] };
    this.titles = { y: element("span"), x: element("span") };
    const row = (side) => {
      const [low, high] = this.inputs[side];
      return element("div", { class: "dsnb-range" }, this.titles[side], element("label", {}, "from", low), element("label", {}, "to", high));
    };
    this.clear = element("button", { type: "button", onclick: () => this.set({ brush: null }) }, labels.clear);
    this.node = element(
      "details", { class: "dsnb-region" }, element("summary", {}, labels.region), row("y"), row("x"), this.clear,
    );
  }

  // An empty limit is open.
  read() {
    const { model } = this;
    const open = model.rules.openEdge;
    const edge = (side, input, otherwise) => (input.value === "" ? otherwise : model.undisplayed(this.state[side], Number(input.value)));
    const given = Object.values(this.inputs).flat().some((input) => input.value !== "");
    const range = (side) => [edge(side, this.inputs[side][0], -open), edge(side, this.inputs[side][1], open)].sort((a, b) => a - b);
    this.set({ brush: given ? { x: range("x"), y: range("y") } : null });
  }

  show(state) {
    this.state = state;
    const { model } = this;
    for (const side of ["x", "y"]) {
      this.titles[side].textContent = state[side] ? model.heading(state[side]) : "";
      this.inputs[side].forEach((input, index) => {
        const value = state.brush?.[side][index];
        const open = value === undefined || Math.abs(value) >= model.rules.openEdge;
        input.value = open ? "" : Number(model.displayed(state[side], value).toPrecision(9));
        input.setAttribute("aria-label", `${this.titles[side].textContent} ${index ? "to" : "from"}`);
      });
    }
    this.clear.disabled = !state.brush;
  }
}
