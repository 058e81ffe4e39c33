// The answer to the selected task, and the question: what is to be least, for how many tokens, at which price.

const ALL_TASKS = "One panel for each task, ★ at its answer. Runs of different tasks are never compared.";

// A field for a number. What is entered and not allowed is put back, with a sentence that names it and says what is allowed.
class NumberField {
  // `rule` is one of `INPUTS` in dsnb/explorer/question.py.
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
    const { labels, decision } = model;
    const entered = { onchange: ({ target }) => this.read(target), onkeydown: ({ key, target }) => key === "Enter" && this.read(target) }; // JupyterLab may keep Enter
    const number = (name, label, attributes) => new NumberField(label, decision.inputs[name], { ...entered, ...attributes });
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
    this.objective = element("select", { onchange: ({ target }) => this.read(target) }, ...options);
    this.tokens = number("train_tokens", labels.train_tokens);
    this.gpus = number("gpus_at_hand", labels.gpus_at_hand, { placeholder: "any" });
    this.currency = element("input", { type: "text", maxlength: "8", size: "4", ...entered });
    this.kinds = [...new Set(decision.settings.filter(Boolean).map(({ kind }) => kind))];
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
    this.forget(state);
    this.showQuestion(state);
    this.remarks.replaceChildren(...(task.remarks ?? []).map((remark) => element("li", {}, remark)));
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
    this.tokens.input.value = Number((state.train_tokens / this.tokens.rule.factor).toPrecision(15));
    this.gpus.input.value = state.gpus_at_hand || "";
    this.gpus.node.firstChild.textContent = this.model.labels.gpus_at_hand.replace("{unit}", unit === "rank" ? "Rank" : unit);
    this.currency.value = state.currency;
    this.relevance.input.value = Number((100 * state.relevance).toPrecision(12));
    this.shown = this.kinds.map((kind) => this.decision.price(kind) ?? "");
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
  table(rows) {
    if (!rows.length) return null;
    const head = ["differs in", "best", "runner-up"].map((text) => element("th", { scope: "col" }, text));
    const body = rows.map(([title, ...cells]) => element("tr", {}, element("th", { scope: "row" }, title), ...cells.map((text) => element("td", {}, text))));
    return element("table", { class: "dsnb-differs" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  }
}
