// The tables beside the charts: effects of one change, the Pareto front.

// The effect of changing one setting on these figures.
const effectTable = (model, effects, metrics, relevance) => {
  if (!effects.length) return element("p", { class: "dsnb-empty" }, "No selected experiment differs from the baseline in exactly one setting.");
  const head = ["change", ...metrics.map((name) => model.title(name))];
  const rows = effects.map((effect) => {
    const axis = model.axis.get(effect.axis);
    const text = `${axis.title}: ${axis.labels[effect.before]} → ${axis.labels[effect.after]}`;
    const failed = effect.runs.filter((run) => !model.ok[run]);
    const statuses = [...new Set(failed.map((run) => model.status.labels[model.status.codes[run]]))].join(", ");
    const note = failed.length ? element("span", { class: "dsnb-bad" }, ` ${failed.length} of ${effect.runs.length} ${statuses}`) : null;
    return element("tr", {}, element("th", { scope: "row" }, text, note), ...metrics.map((name, index) => changeCell(model, name, effect.changes[index])));
  });
  const top = element("tr", {}, ...head.map((name, index) => element("th", { scope: "col", class: index ? null : "dsnb-text" }, name)));
  const table = element("table", {}, element("caption", {}, "Effect of one change"), element("thead", {}, top), element("tbody", {}, ...rows));
  const box = element("div", { class: "dsnb-scroll", tabindex: "0", role: "region", "aria-label": "Effect of one change" }, table);
  return element("div", {}, box, verdictNotes(model, effects, relevance));
};

// The Pareto front as a list, numbered as its points are in the chart.
const frontList = (model, front, state, pins) => {
  const reason = model.figures.length ? "choose two different metrics for which higher or lower is better." : "nothing was measured.";
  if (!front.length) return element("p", { class: "dsnb-soft" }, `No Pareto front: ${reason}`);
  const items = front.map((point) => {
    const figures = `${model.labelled(state.y, point.y)}, ${model.labelled(state.x, point.x)}`;
    const pin = pins.button(model.experiments.names[point.experiment], "Pin");
    pin.setAttribute("aria-label", `Pin ${model.short[point.experiment]}`);
    return element("li", {}, element("strong", {}, model.short[point.experiment]), `: ${figures} `, pin);
  });
  return element("ol", {}, ...items);
};
