// The answer to the selected task, and the question: what is to be least, for how many tokens, at which price.

const ALL_TASKS = "One panel for each task, ★ at its answer. Runs of different tasks are never compared.";

class Card {
  constructor(model, set) {
    Object.assign(this, { model, set });
    const { labels, decision } = model;
    const entered = { onchange: () => this.read(), onkeydown: ({ key }) => key === "Enter" && this.read() }; // JupyterLab may keep Enter
    const number = (attributes) => element("input", { type: "number", min: "0", step: "any", ...entered, ...attributes });
    const group = newId();
    this.choices = [decision.allTasks, ...decision.tasks].filter(Boolean);
    this.tasks = this.choices.map(({ title }) => element("input", { type: "radio", name: group, onchange: () => set({ task: title }) }));
    const chips = this.choices.map((task, index) => {
      const title = task === decision.allTasks ? labels.all_tasks : task.title;
      return element("label", { class: "dsnb-chip", title }, this.tasks[index], element("span", {}, title));
    });
    const tasks = chips.length > 1 ? element("fieldset", { class: "dsnb-tasks" }, element("legend", {}, labels.task), ...chips) : null;
    this.text = element("div", { class: "dsnb-answer", role: "status" });
    const options = decision.objectives.map((value) => element("option", { value }, ""));
    this.objective = element("select", { onchange: () => this.read() }, ...options);
    this.tokens = number({ min: "0.001" });
    this.gpus = number({ step: "1", placeholder: "any" });
    this.gpusField = field(labels.gpus_at_hand, this.gpus);
    this.currency = element("input", { type: "text", maxlength: "8", size: "4", ...entered });
    this.kinds = [...new Set(decision.settings.filter(Boolean).map(({ kind }) => kind))];
    this.prices = this.kinds.map(() => number());
    this.priceFields = this.kinds.map((kind, index) => field(`${labels.price} (${kind})`, this.prices[index]));
    this.relevance = number({ max: "99" });
    const fields = [field(labels.objective, this.objective), field(labels.train_tokens, this.tokens), this.gpusField, ...this.priceFields, field(labels.currency, this.currency), field(labels.relevance, this.relevance)];
    this.form = element("div", { class: "dsnb-fields" }, ...fields);
    const remarks = element("ul", { class: "dsnb-remarks" }, ...decision.remarks.map((remark) => element("li", {}, remark)));
    this.node = element("section", { class: "dsnb-card dsnb-decision", "aria-label": labels.answer }, tasks, this.text, this.form, remarks);
  }

  // Take over what was entered; what is no number above 0 is put back.
  read() {
    const tokens = Number(this.tokens.value) * 1e9;
    const gpus = Math.floor(Number(this.gpus.value));
    const relevance = Number(this.relevance.value) / 100;
    const prices = { ...this.state.prices };
    this.kinds.forEach((kind, index) => {
      const { value } = this.prices[index];
      if (value === String(this.shown[index])) return;
      if (value === "") delete prices[kind];
      else prices[kind] = Math.min(Math.max(Number(value), 0), 1e9);
    });
    this.set({
      objective: this.objective.value, prices, currency: this.currency.value,
      train_tokens: tokens >= 1 && tokens <= 1e18 ? tokens : this.state.train_tokens,
      gpus_at_hand: gpus > 0 && gpus <= 1e9 ? gpus : 0,
      relevance: this.relevance.value !== "" && relevance >= 0 && relevance < 1 ? relevance : this.state.relevance,
    });
    this.show(this.state);
  }

  decide(state) {
    return new Decision(this.model, this.model.task(state), state);
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
      this.text.replaceChildren(element("p", {}, model.decision.noRuns));
      return;
    }
    this.decision = this.decide(state);
    this.showQuestion(state);
    if (model.showsAllTasks(state)) this.text.replaceChildren(element("p", {}, ALL_TASKS));
    else this.showAnswer(task, { ...this.decision.words(), worth: model.predictions.worthMeasuring(this.decision) });
  }

  // Move the focus to the task that is shown.
  focus() {
    this.tasks.find((input) => input.checked)?.focus();
  }

  showQuestion(state) {
    const own = new Set(this.decision.settings().map(({ kind }) => kind));
    const units = new Set(this.decision.settings().map((setting) => setting.unit));
    const unit = units.size === 1 ? [...units][0] : "GPU";
    [...this.objective.options].forEach((option) => {
      option.textContent = this.model.decision.best[option.value].replace("{unit}", unit);
    });
    this.objective.value = state.objective;
    this.tokens.value = state.train_tokens / 1e9;
    this.gpus.value = state.gpus_at_hand || "";
    this.gpusField.firstChild.textContent = this.model.labels.gpus_at_hand.replace("{unit}", unit === "rank" ? "Rank" : unit);
    this.currency.value = state.currency;
    this.relevance.value = Number((100 * state.relevance).toPrecision(12));
    this.shown = this.kinds.map((kind) => this.decision.price(kind) ?? "");
    this.kinds.forEach((kind, index) => {
      this.prices[index].value = this.shown[index];
      this.priceFields[index].hidden = !own.has(kind);
    });
  }

  showAnswer(task, words) {
    const line = (name) => (words[name] ? element("p", { class: `dsnb-${name}` }, words[name]) : null);
    const title = task.title && this.tasks.length === 1 ? element("h3", {}, task.title) : null;
    const parts = ["kicker", "headline", "costs", "following", "worth"].map(line);
    this.text.replaceChildren(...[title, ...parts, this.table(words.table), line("basis")].filter(Boolean));
  }

  // The settings in which the best and the next differ.
  table(rows) {
    if (!rows.length) return null;
    const head = ["differs in", "best", "runner-up"].map((text) => element("th", { scope: "col" }, text));
    const body = rows.map(([title, ...cells]) => element("tr", {}, element("th", { scope: "row" }, title), ...cells.map((text) => element("td", {}, text))));
    return element("table", { class: "dsnb-differs" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  }
}
