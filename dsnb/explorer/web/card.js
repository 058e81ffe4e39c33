// The card: the answer to the selected task, and the question: what is to be least, for how many tokens, at which price. Then all
// tasks side by side.

const ALL_TASKS = "One panel for each task, ★ at its answer. Runs of different tasks are never compared.";

// A field for a number. What is entered and not allowed is put back, with a sentence that names it and says what is allowed.
class NumberField {
  // `rule` is one of `INPUTS` in dsnb/explorer/state.py.
  constructor(label, rule, attributes) {
    this.rule = rule;
    this.input = element("input", { type: "text", inputmode: "decimal", class: "dsnb-number", ...attributes });
    this.problem = element("span", { class: "dsnb-problem", role: "alert", id: newId() });
    this.node = field(label, this.input);
    this.node.append(this.problem);
  }

  // The value in the unit of the state, null for an empty field that may be empty, undefined for what is not allowed.
  value() {
    const { rule } = this;
    const text = this.input.value.trim();
    if (text === "") return rule.mayBeEmpty ? null : undefined;
    const value = Number((Number(text) * rule.factor).toPrecision(15));
    return value >= rule.least && value <= rule.most && (!rule.isWhole || Number.isInteger(value)) ? value : undefined;
  }

  // What is wrong with what is entered; empty if nothing is.
  wrong() {
    const text = this.input.value.trim();
    return this.value() === undefined ? `${text ? `“${text.slice(0, 40)}”` : "An empty field"} was not used: ${this.rule.allowed}.` : "";
  }

  say(problem) {
    this.problem.textContent = problem;
    this.input.setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem) this.input.setAttribute("aria-describedby", this.problem.id);
    else this.input.removeAttribute("aria-describedby");
  }
}

class Card {
  constructor(model, set) {
    Object.assign(this, { model, set });
    const { labels } = model;
    const entered = { onchange: ({ target }) => this.read(target), onkeydown: ({ key, target }) => key === "Enter" && this.read(target) }; // JupyterLab may keep Enter
    const number = (name, label, attributes) => new NumberField(label, model.inputs[name], { ...entered, ...attributes });
    const group = newId();
    this.choices = [model.allTasks, ...model.tasks].filter(Boolean);
    this.tasks = this.choices.map(({ title }) => element("input", { type: "radio", name: group, onchange: () => set({ task: title }) }));
    const chips = this.choices.map((task, index) => {
      const title = task === model.allTasks ? labels.all_tasks : task.title;
      return element("label", { class: "dsnb-chip", title }, this.tasks[index], element("span", {}, title));
    });
    const tasks = chips.length > 1 ? element("fieldset", { class: "dsnb-tasks" }, element("legend", {}, labels.task), ...chips) : null;
    this.text = element("div", { class: "dsnb-answer", role: "status" });
    const options = Object.keys(model.words.best).map((value) => element("option", { value }, ""));
    this.objective = element("select", { onchange: ({ target }) => this.read(target) }, ...options);
    this.tokens = number("train_tokens", labels.train_tokens);
    this.gpus = number("gpus_at_hand", labels.gpus_at_hand, { placeholder: "any" });
    this.currency = element("input", { type: "text", maxlength: "8", size: "4", ...entered });
    this.kinds = [...new Set(model.tasks.flatMap(({ candidates }) => candidates.map(({ kind }) => kind)))];
    this.prices = this.kinds.map((kind) => number("price", `${labels.price} (${kind})`));
    this.relevance = number("relevance", labels.relevance);
    this.numbers = [this.tokens, this.gpus, ...this.prices, this.relevance];
    const fields = [field(labels.objective, this.objective), ...[this.tokens, this.gpus, ...this.prices].map(({ node }) => node), field(labels.currency, this.currency), this.relevance.node];
    this.form = element("div", { class: "dsnb-fields" }, ...fields);
    this.remarks = element("ul", { class: "dsnb-remarks" });
    this.node = element("section", { class: "dsnb-card dsnb-decision", "aria-label": labels.answer }, tasks, this.text, this.form, this.remarks);
  }

  // Take over what was entered, except what is not allowed: then the answer stays as it was, and the field says so.
  read(target) {
    const { state } = this;
    const entered = this.numbers.find(({ input }) => input === target);
    const wrong = entered?.wrong();
    const [tokens, gpus, relevance] = [this.tokens, this.gpus, this.relevance].map((one) => one.value());
    const prices = { ...state.prices };
    this.kinds.forEach((kind, index) => {
      const price = this.prices[index].value();
      if (price === undefined || this.prices[index].input.value === String(this.shown[index])) return;
      if (price === null) delete prices[kind];
      else prices[kind] = price;
    });
    this.set({
      objective: this.objective.value, prices, currency: this.currency.value,
      train_tokens: tokens ?? state.train_tokens,
      gpus_at_hand: gpus === undefined ? state.gpus_at_hand : (gpus ?? 0),
      relevance: relevance ?? state.relevance,
    });
    this.show(this.state);
    entered?.say(wrong);
  }

  // What was said of an entry holds until another question is shown.
  forget(state) {
    const asked = JSON.stringify([state.task, state.objective, state.train_tokens, state.gpus_at_hand, state.prices, state.currency, state.relevance]);
    if (this.asked !== asked) for (const one of this.numbers) one.say("");
    this.asked = asked;
  }

  show(state) {
    this.state = state;
    const { model } = this;
    const task = model.task(state);
    this.tasks.forEach((input, index) => {
      input.checked = this.choices[index] === task;
    });
    this.form.hidden = !task;
    if (!task) {
      this.text.replaceChildren(element("p", {}, model.words.noRuns));
      return;
    }
    this.forget(state);
    this.showQuestion(state, task);
    this.remarks.replaceChildren(...(task.remarks ?? []).map((remark) => element("li", {}, remark)));
    this.answer = task === model.allTasks ? null : new Answer(model, task, state);
    if (this.answer) this.showAnswer(task, { ...this.answer.words(), worth: model.predictions.worthMeasuring(this.answer) });
    else this.text.replaceChildren(element("p", {}, ALL_TASKS));
  }

  // Move the focus to the task that is shown.
  focus() {
    this.tasks.find((input) => input.checked)?.focus();
  }

  showQuestion(state, task) {
    const { model } = this;
    const candidates = (task === model.allTasks ? model.tasks : [task]).flatMap((one) => one.candidates);
    const own = new Set(candidates.map(({ kind }) => kind));
    const units = new Set(candidates.map(({ unit }) => unit));
    const unit = units.size === 1 ? [...units][0] : "GPU";
    for (const option of this.objective.options) option.textContent = fill(model.words.best[option.value], { unit });
    this.objective.value = state.objective;
    this.tokens.input.value = Number((state.train_tokens / this.tokens.rule.factor).toPrecision(15));
    this.gpus.input.value = state.gpus_at_hand || "";
    this.gpus.node.firstChild.textContent = fill(model.labels.gpus_at_hand, { unit: unit === "rank" ? "Rank" : unit });
    this.currency.value = state.currency;
    this.relevance.input.value = Number((100 * state.relevance).toPrecision(12));
    this.shown = this.kinds.map((kind) => priceOf(model, state, kind) ?? "");
    this.kinds.forEach((kind, index) => {
      this.prices[index].input.value = this.shown[index];
      this.prices[index].node.hidden = !own.has(kind);
    });
  }

  showAnswer(task, words) {
    const line = (name) => (words[name] ? element("p", { class: `dsnb-${name}` }, words[name]) : null);
    const title = task.title && this.tasks.length === 1 ? element("h3", {}, task.title) : null;
    const parts = ["kicker", "headline", "costs", "note", "following", "worth"].map(line);
    this.text.replaceChildren(...[title, ...parts, this.table(words.table), line("basis")].filter(Boolean));
  }

  // The settings in which the best and the next differ.
  table(rows = []) {
    if (!rows.length) return null;
    const head = ["differs in", "best", "runner-up"].map((text) => heading(text));
    const body = rows.map(({ title, from, to }) => element("tr", {}, element("th", { scope: "row" }, title), element("td", {}, from), element("td", {}, to)));
    return element("table", { class: "dsnb-differs" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  }
}

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
    const answer = new Answer(model, task, own);
    const { headline, costs, note } = answer.words();
    [this.headline.textContent, this.costs.textContent] = [headline, [costs, note].filter(Boolean).join(" ")];
    const runs = model.filtered(own);
    const front = model.front(model.grouped(runs), own);
    const picture = scatter(model, own, runs, runs, front, answer.best?.experiment);
    this.chart.draw(picture);
    this.note.textContent = picture.message ? "" : picture.note;
  }
}

class Overview {
  // `open(title)` shows one task alone.
  constructor(model, open) {
    const { tasks } = model;
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
