// The explorer: it keeps the state and redraws what a change affects.

class Explorer {
  // `live` is what a widget gives: `changed(state)`, called after every change made here, and `link(path)`, the address of a file.
  constructor(root, payload, live = null) {
    const model = new Model(payload);
    const relative = (path) => `./${path.map(encodeURIComponent).join("/")}`; // no part can start another scheme
    Object.assign(model, { link: live?.link ?? relative, leftOut: live ? model.words.notLoaded : model.words.leftOut });
    this.address = live ? null : new AddressState(model, mounted.push(this));
    Object.assign(this, { root, model, changed: live?.changed ?? (() => {}), state: payload.state });
    const set = (patch) => this.set(patch);
    this.card = new Card(model, set);
    this.overview = new TaskTable(model, (task) => {
      this.set({ task });
      this.card.models.focus();
    });
    this.single = box("dsnb-single"); // the views of one task
    this.controls = new Controls(model, set);
    this.count = element("p", { class: "dsnb-count", role: "status" });
    this.legend = new Legend(model, set);
    this.titles = { scatter: element("span"), medians: element("span") };
    [this.about, this.laneNote, this.lossNote, this.shared] = [soft("", { class: "dsnb-soft dsnb-unprinted" }), soft(), soft(), soft()];
    this.regionHint = soft(model.words.region, { class: "dsnb-soft dsnb-unprinted" });
    this.clear = button("Clear region", () => set({ brush: null }));
    this.front = element("section", { class: "dsnb-card dsnb-front" });
    this.base = select((base) => set({ base }));
    this.effectBox = box("dsnb-later");
    this.lossBy = select(() => this.draw(), [["step", "optimizer step"], ["t_s", SINCE_START]]);
    this.lossField = field("Loss against", this.lossBy);
    this.pins = new Pins(model, set);
    this.detail = new Detail(model, set, this.pins);
    this.byGpus = new ByGpus(model);
    this.table = new RunTable(model, (run) => this.open(run), set);
    const events = { tooltip: (mark) => this.describe(mark), click: (mark) => this.clicked(mark) };
    this.scatter = new Chart("scatter", "All runs; the tables below contain the same data", { ...events, brush: (region) => this.brushing(region) }, 330);
    this.medians = new Chart("medians", "Medians of the selected experiments", events);
    this.losses = new Chart("lines", "Losses of the selected runs", { ...events, highlight: true });
    for (const chart of this.charts()) chart.menu.append(saveButton(chart, () => this.describePicture(chart)));
    root.replaceChildren(this.card.node, this.overview.node, this.single, ...model.sources.map(sourceNote));
    const filters = element("details", { class: "dsnb-fold" }, element("summary", {}, "Filters and axes"), this.controls.node);
    const head = box("dsnb-toolbar", element("h3", {}, this.titles.scatter), this.count, filters);
    const notes = [this.clear, this.laneNote, this.regionHint, this.about];
    const chart = element("section", { class: "dsnb-card" }, head, this.legend.node, this.scatter.node, notes);
    this.single.append(
      box("dsnb-first", chart, box("dsnb-side", this.detail.node, this.front)),
      this.byGpus.node,
      box(
        "dsnb-grid",
        card(this.titles.medians, this.medians.node),
        box("dsnb-unprinted", card("Loss", this.lossField, this.losses.node, this.lossNote)),
      ),
      box(
        "dsnb-unprinted",
        card("Effect of one change", field("Baseline", this.base), this.effectBox),
        this.pins.node,
      ),
      card("Medians and runs", this.shared, this.table.node, soft(model.words.whole)), model.predictions.node ?? "",
    );
    this.restore();
    this.listeners = new AbortController();
    const { signal } = this.listeners;
    this.watchTheme(signal);
    if (this.address) addEventListener("hashchange", () => this.restore(), { signal });
    root.dsnb = this;
  }

  charts() {
    return [this.scatter, this.medians, this.losses, ...this.byGpus.charts, ...this.detail.charts];
  }

  // Follow the light or dark theme of the system and of JupyterLab; print is always light.
  watchTheme(signal) {
    const recolour = () => this.charts().forEach((chart) => chart.recolour());
    const print = (printing) => () => {
      this.root.classList.toggle("dsnb-print", printing);
      this.card.basis.open = printing;
      recolour();
    };
    const lab = new MutationObserver(recolour);
    lab.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    signal.addEventListener("abort", () => lab.disconnect());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour, { signal });
    addEventListener("beforeprint", print(true), { signal });
    addEventListener("afterprint", print(false), { signal });
  }

  // The texts in a saved picture of a chart: title, legend, and what was measured with what.
  describePicture(chart) {
    const { model, state, selected } = this;
    const isOfRuns = [this.scatter, this.medians, this.losses].includes(chart);
    const legend = isOfRuns ? [...legendEntries(model, state), ...otherEntries(model, state, selected)] : [];
    if (chart === this.scatter) legend.push(...settingEntries(model, state, chart.picture.data));
    const title = joined([model.task(state)?.title, chart.title ?? chart.label], ": ");
    const cite = joined([model.cite, `n = ${count(selected.length, "run")}`], "; ");
    return { title, legend, cite };
  }

  // Set some controls, the same as explorer.set in Python; `notify` is false for changes that come from Python.
  set(patch, notify = true) {
    const before = this.state;
    cancelAnimationFrame(this.waiting);
    this.waiting = null;
    this.state = this.model.changed(before, patch);
    if (notify) this.changed(this.state);
    this.address?.write(this.state);
    const changed = Object.keys(this.state).filter((name) => this.state[name] !== before[name]);
    const parts = { run: () => this.detail.show(this.state.run, this.state), pins: () => this.pins.show(this.state) };
    parts.sort = parts.table = () => this.table.show(this.selected, this.groups, this.state);
    if (!this.single.hidden && changed.every((name) => parts[name])) changed.forEach((name) => parts[name]());
    else this.redraw();
    paintViewFirst(this.root);
  }

  // Show the state in the address, or the one that the page was saved with if the address does not fit this page.
  restore() {
    const { state } = this.model;
    this.state = { ...state, ...this.address?.read() };
    try {
      this.redraw();
    } catch {
      this.state = state;
      this.redraw();
    }
  }

  redraw() {
    const { model, state } = this;
    this.card.show(state);
    this.filtered = model.passing(state).filter((row) => row < model.runs);
    this.selected = model.brushed(this.filtered, state);
    this.groups = model.grouped(this.selected);
    this.single.hidden = model.task(state) === model.allTasks;
    this.overview.node.hidden = !this.single.hidden;
    if (this.single.hidden) {
      this.overview.show(state);
      return;
    }
    this.controls.show(state);
    if (this.card.answer) this.byGpus.show(this.card.answer);
    this.clear.hidden = !state.brush;
    this.regionHint.hidden = model.axis.has(state.x);
    this.describeSelection();
    this.frontier = model.front(model.grouped(this.filtered), state); // a region selects, it does not change what is best
    this.draw();
    this.compare();
    this.table.show(this.selected, this.groups, state);
    model.predictions.show(state);
    this.pins.show(state);
    this.detail.show(state.run, state);
  }

  describeSelection() {
    const { model, selected, state } = this;
    const all = model.runsOf(model.task(state)).length;
    const ofTask = all < model.runs ? " of this task" : "";
    const bad = model.notOk(selected);
    this.count.textContent = `${selected.length} of ${count(all, "run")}${ofTask} in ${count(this.groups.size, "experiment")} selected${bad ? `; ${bad} not ok` : ""}.`;
    this.shared.textContent = model.task(state)?.shared ?? "";
    const titleOf = (name) => model.named.get(name)?.title ?? "nothing measured";
    const [y, x, along] = [state.y, state.x, state.along].map(titleOf);
    this.scatter.title = this.titles.scatter.textContent = `${y} against ${x}`;
    this.medians.title = this.titles.medians.textContent = `${y} by ${along}`;
    const explained = model.figuresOf(state).filter(({ about }) => about);
    this.about.textContent = joined(explained.map(({ title, about }) => `${title}: ${about}`));
  }

  draw() {
    const { model, state, selected } = this;
    const picture = scatter(model, state, this.filtered, selected, this.frontier, this.card.answer);
    this.scatter.draw(picture);
    this.legend.show(state, this.filtered, picture.data);
    this.laneNote.textContent = picture.note;
    this.front.replaceChildren(element("h3", {}, `Best trade-offs: differences below ${percent(state.relevance)} do not count`), frontList(model, this.frontier, state, this.pins));
    this.medians.draw(medians(model, state, selected, this.groups));
    const loss = losses(model, state, selected, this.lossBy.value);
    this.lossField.hidden = !loss.hasTimes;
    this.losses.draw(loss);
    const without = selected.filter((run) => !model.series[run]).length;
    const missing = without ? `The steps of ${without} of the ${count(selected.length, "selected run")} ${model.leftOut}` : "";
    this.lossNote.textContent = joined([loss.note, missing]);
  }

  compare() {
    const { model, state, groups } = this;
    const { names } = model.experiments;
    const base = model.base(groups, state); // none without runs
    const offered = groups.size ? [...new Set([base, ...groups.keys()])].slice(0, 200) : [];
    this.base.replaceChildren(...options(offered.map((code) => [names[code], model.short[code]])));
    this.base.value = names[base] ?? "";
    this.base.disabled = !groups.size;
    this.compared = [...new Set([...model.comparedFigures, state.y])].filter((name) => model.figure.has(name));
    this.effects = groups.size ? model.effects(groups, base, this.compared, state) : [];
    this.effectBox.replaceChildren(effectTable(model, this.effects, this.compared, state.relevance));
  }

  describe({ id, isExperiment = false, isPredicted = false }) {
    const { model, state } = this;
    if (isPredicted) return model.predictions.describe(id);
    const experiment = isExperiment ? id : model.experiments.codes[id];
    const lines = [model.short[experiment]];
    const runs = isExperiment ? model.whole.get(experiment) : [id];
    for (const { name, heading: title } of model.figuresOf(state)) {
      const { n, ...spread } = model.spread(name, experiment, state, runs);
      const number = (value) => model.number(name, value);
      const [middle, ...ends] = [spread.median, spread.low, spread.high].map(number);
      const range = n > 1 ? ` (median of ${n} runs: ${[...new Set(ends)].join(" to ")})` : "";
      if (n) lines.push(`${title}: ${middle}${range}`);
    }
    if (!isExperiment) {
      lines.splice(1, 0, `run ${model.repeats[id] ?? "?"}: ${model.statuses[id]} ${model.causes[id] ?? ""}`);
      lines.push(...model.remarksOn(id));
    }
    return [...new Set(lines)].map(cut);
  }

  clicked({ id, isExperiment = false, isPredicted = false }) {
    if (isPredicted) return;
    if (isExperiment) this.set({ base: this.model.experiments.names[id] });
    else {
      this.set({ run: id });
      this.detail.node.scrollIntoView({ block: "nearest" }); // it is beside the first chart, not beside the others
    }
  }

  open(run) {
    this.set({ run });
    this.detail.title.focus();
  }

  // A brush moves many times a second; redraw once per frame.
  brushing(brush) {
    if (this.model.axis.has(this.state.x)) return; // the filters select its values
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.set({ brush }));
  }

  destroy() {
    this.listeners.abort();
    this.charts().forEach((chart) => chart.destroy());
  }
}

// A table of published data: its title, which links to it where it has an address, who published it, and when.
const sourceNote = ({ title, about, link }) => soft([link ? element("a", { href: link }, title) : title, about]);

// Skip tables out of view in the next frame (style.css) and lay them out after it. The class is only set while the browser paints, since
// `innerText` leaves out skipped text.
const paintViewFirst = (root) => requestAnimationFrame(() => {
  root.classList.add("dsnb-painting");
  setTimeout(() => root.classList.remove("dsnb-painting"));
});

const mounted = []; // the explorers of a page, in their order

// In a page: create every explorer from the data beside it.
const mountAll = () => {
  for (const root of document.querySelectorAll(".dsnb-explorer")) {
    const data = root.parentNode.querySelector("script[type='application/json']");
    if (data && !root.dsnb) new Explorer(root, JSON.parse(data.textContent));
  }
};
