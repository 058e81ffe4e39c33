// The page's own controls. In JupyterLab ipywidgets stand in their place (dsnb/explorer/live.py), made from the same list.

const SELECTS = [
  ["y", "Metric"], ["x", "against"], ["colour", "Colour"], ["along", "Medians along"],
  ["y_scale", "Metric's scale"], ["x_scale", "Scale across"],
];

class Controls {
  constructor(model, set) {
    Object.assign(this, { model, set });
    this.boxes = model.axes.filter((axis) => axis.values.length > 1).map((axis) => this.filter(axis));
    this.selects = SELECTS.map(([name, label]) => this.select(name, label));
    this.tokens = element("input", { type: "number", min: "0.001", step: "any", onchange: () => this.train() });
    const days = field("Days for billions of tokens", this.tokens);
    days.hidden = !model.figure.has("days");
    const reset = element("button", { type: "button", onclick: () => set(model.defaults) }, "Reset everything");
    const filters = element("div", { class: "dsnb-filters" }, ...this.boxes.map((box) => box.node));
    const fields = element("div", { class: "dsnb-fields" }, ...this.selects.map((one) => one.node), days, reset);
    this.node = element("div", { class: "dsnb-controls" }, filters, fields);
  }

  // Several values of one axis can be chosen together; none chosen means all.
  filter(axis) {
    const inputs = axis.values.map(() => element("input", { type: "checkbox", onchange: () => this.choose(axis, inputs) }));
    const labels = axis.labels.map((label, code) => element("label", { class: "dsnb-chip", title: label }, inputs[code], element("span", {}, label)));
    return { axis, inputs, node: element("fieldset", {}, element("legend", {}, axis.title), ...labels) };
  }

  choose(axis, inputs) {
    this.set({ [axis.name]: axis.values.filter((value, code) => inputs[code].checked) });
  }

  select(name, label) {
    const titled = (value) => (name.endsWith("_scale") ? value : this.model.heading(value));
    const options = this.model.options[name].map((value) => element("option", { value }, titled(value)));
    const input = element("select", { onchange: () => this.set({ [name]: input.value }), disabled: !options.length }, ...options);
    return { name, input, node: field(label, input) };
  }

  train() {
    const billions = Number(this.tokens.value);
    if (billions > 0 && billions <= 1e9) this.set({ train_tokens: billions * 1e9 });
    else this.show(this.state);
  }

  show(state) {
    this.state = state;
    for (const { axis, inputs } of this.boxes) {
      inputs.forEach((input, code) => {
        input.checked = state[axis.name].includes(axis.values[code]);
      });
    }
    for (const { name, input } of this.selects) input.value = state[name] ?? "";
    this.selects.find(({ name }) => name === "x_scale").input.disabled = this.model.axis.has(state.x); // settings have none
    this.tokens.value = state.train_tokens / 1e9;
  }
}

// The region that the brush draws, as four numbers: for the keyboard, and for who wants it exact.
class Region {
  constructor(model, set) {
    Object.assign(this, { model, set });
    const input = () => element("input", { type: "number", step: "any", onchange: () => this.read() });
    this.inputs = { y: [input(), input()], x: [input(), input()] };
    this.titles = { y: element("span"), x: element("span") };
    const row = (side) => {
      const [low, high] = this.inputs[side];
      return element("div", { class: "dsnb-range" }, this.titles[side], element("label", {}, "from", low), element("label", {}, "to", high));
    };
    this.clear = element("button", { type: "button", onclick: () => this.set({ brush: null }) }, "Clear the region");
    this.node = element(
      "details", { class: "dsnb-region" }, element("summary", {}, "Region: draw it in the chart, or give its edges"), row("y"), row("x"), this.clear,
    );
  }

  // An edge that is left empty is open.
  read() {
    const edge = (input, open) => (input.value === "" ? open : Number(input.value));
    const given = Object.values(this.inputs).flat().some((input) => input.value !== "");
    const far = 1e300;
    const side = (name) => [edge(this.inputs[name][0], -far), edge(this.inputs[name][1], far)].sort((a, b) => a - b);
    this.set({ brush: given ? { x: side("x"), y: side("y") } : null });
  }

  show(state) {
    for (const side of ["x", "y"]) {
      this.titles[side].textContent = state[side] ? this.model.heading(state[side]) : "";
      this.inputs[side].forEach((input, index) => {
        const value = state.brush?.[side][index];
        input.value = value === undefined || Math.abs(value) >= 1e300 ? "" : Number(value.toPrecision(6));
        input.setAttribute("aria-label", `${this.titles[side].textContent} ${index ? "to" : "from"}`);
      });
    }
    this.clear.disabled = !state.brush;
  }
}
