// All tasks side by side: for each a small chart with its own front, its best setting marked, and the decision in a line.

const MOST_PANELS = 12;

class TaskPanel {
  // `open()` shows the task alone; the button is for the keyboard, the whole panel for the mouse.
  constructor(model, task, open) {
    Object.assign(this, { model, task });
    const box = element("div", { class: "dsnb-box" });
    const button = element("button", { type: "button", class: "dsnb-link" }, task.title);
    this.headline = element("p");
    this.costs = element("p", { class: "dsnb-soft" });
    this.note = element("p", { class: "dsnb-soft" });
    const remarks = element("ul", { class: "dsnb-remarks" }, ...task.remarks.map((remark) => element("li", {}, remark)));
    this.node = element("section", { class: "dsnb-card dsnb-panel", onclick: open }, element("h3", {}, button), this.headline, this.costs, box, this.note, remarks);
    this.chart = new Chart(box, model.charts.scatter, `Runs of ${task.title}`, {}, 190);
  }

  show(state) {
    const { model, task } = this;
    const own = { ...state, task: task.title, ...model.measuredAxes(state, task) };
    const decision = new Decision(model, task, own);
    const { headline, costs, note } = decision.words();
    [this.headline.textContent, this.costs.textContent] = [headline, [costs, note].filter(Boolean).join(" ")];
    const runs = model.filtered(own);
    const front = model.front(model.grouped(runs), own);
    const picture = scatter(model, own, runs, runs, front, decision.best?.experiment);
    this.chart.draw(picture);
    this.note.textContent = picture.message ? "" : picture.note;
  }
}

class Overview {
  // `open(title)` shows one task alone.
  constructor(model, open) {
    const { tasks } = model.decision;
    Object.assign(this, { model, open, tasks: tasks.slice(0, MOST_PANELS), panels: [] });
    const others = tasks.slice(MOST_PANELS);
    const runs = others.flatMap((task) => model.runsOf(task)).length;
    const more = `${count(others.length, "more task")} with ${count(runs, "run")} ${others.length === 1 ? "has" : "have"} no panel: choose one above.`;
    this.grid = element("div", { class: "dsnb-panels" });
    this.node = element("div", { hidden: true }, this.grid, others.length ? element("p", { class: "dsnb-soft" }, more) : null);
  }

  get charts() {
    return this.panels.map(({ chart }) => chart);
  }

  show(state) {
    if (!this.panels.length) {
      this.panels = this.tasks.map((task) => new TaskPanel(this.model, task, () => this.open(task.title)));
      this.grid.append(...this.panels.map(({ node }) => node));
    }
    for (const panel of this.panels) panel.show(state);
  }
}
