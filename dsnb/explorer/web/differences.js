// How settings differ over repeated runs: the method of dsnb/analysis (replicates.py, intervals.py, comparison_table.py),
// with its constants from the page's data; tests compare both. docs/explanation/statistics.md explains it.

const sum = (values) => values.reduce((total, value) => total + value, 0);
const average = (values) => (values.length ? sum(values) / values.length : NaN);

// Mean, variance (divisor n - 1) and number of values; the variance of a single one is unknown.
const moments = (values) => {
  const mean = average(values);
  const variance = values.length > 1 ? sum(values.map((value) => (value - mean) ** 2)) / (values.length - 1) : NaN;
  return { mean, variance, count: values.length };
};

// The share of a setting's runs on each host.
const hostShares = (hosts) => {
  const shares = new Map();
  for (const host of hosts) shares.set(host, (shares.get(host) ?? 0) + 1 / hosts.length);
  return shares;
};

// Whether a host's effect adds more to the difference of two settings than their own spreads show.
const isConfounded = (one, other) => {
  const hosts = [one.hosts, other.hosts];
  if (hosts.some((names) => !names.length || names.includes(null))) return false;
  const [p, q] = hosts.map(hostShares);
  const adds = sum([...new Set([...p.keys(), ...q.keys()])].map((host) => ((p.get(host) ?? 0) - (q.get(host) ?? 0)) ** 2));
  const shown = [p, q].map((shares, side) => (1 - sum([...shares.values()].map((share) => share ** 2))) / Math.max(1, hosts[side].length - 1));
  return adds > sum(shown) + 1e-9;
};

// One value per host: the mean of the values of its runs.
const byHost = ({ values, hosts }) => [...new Set(hosts)].map((host) => average(values.filter((_, index) => hosts[index] === host)));

// Welch's difference of means with its standard error, and Satterthwaite's degrees of freedom, 0 if unknown.
const welch = (base, other) => {
  const shares = [base, other].map(({ variance, count }) => variance / count);
  const squared = shares[0] + shares[1];
  const parts = shares.map((share, side) => share ** 2 / ([base, other][side].count - 1));
  const degrees = squared > 0 ? squared ** 2 / (parts[0] + parts[1]) : base.count + other.count - 2;
  const known = Number.isFinite(squared) && Number.isFinite(degrees);
  return { estimate: other.mean - base.mean, error: Math.sqrt(squared), degrees: known ? Math.floor(degrees + 1e-9) : 0 };
};

// A change in per cent, or a difference in percentage points, as text with its sign.
const changeText = (value, unit) => {
  const digits = Math.abs(value) < 99.95 ? 1 : 0;
  const text = Math.abs(value).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${text === "0.0" ? "0" : `${value < 0 ? "−" : "+"}${text}`} ${unit}`;
};

// The larger of two bounds without its sign: of "−1.6 %" and "+1.2 %", "1.6 %".
const larger = (low, high) => {
  const sizes = [low, high].map((text) => text.replace(/^[+−]/, ""));
  const [one, other] = sizes.map((text) => Number(text.split(" ")[0].replaceAll(",", "")));
  return other > one ? sizes[1] : sizes[0];
};

class Differences {
  constructor(model) {
    Object.assign(this, { model, method: model.method, range: new StudentizedRange(model.method), counts: new Map() });
  }

  // Percentages are compared as they are, other figures by their logarithms.
  isPercentage(name) {
    return this.model.figure.get(name).unit === "%";
  }

  // The runs of one setting: values and hosts of those with a figure.
  setting(name, values, runs) {
    const { model } = this;
    const linear = this.isPercentage(name);
    const ok = runs.filter((run) => model.ok[run]);
    const used = ok.filter((run) => (linear ? Number.isFinite(values[run]) : values[run] > 0));
    const hosts = used.map((run) => model.hosts[run] ?? null);
    const within = used.length === 1 ? model.alone[used[0]] : undefined; // what a single run shows of its spread
    const { median: middle } = model.spread(values, ok);
    return { values: used.map((run) => (linear ? values[run] : Math.log(values[run]))), median: middle, hosts, unusable: ok.length - used.length, within };
  }

  // The number of settings with repeats in the tasks of these runs, selected or not: with it, the interval of a pair is
  // the same wherever it is shown.
  repeated(name, values, runs) {
    const { taskCodes } = this.model.decision;
    const tasks = new Set(runs.map((run) => taskCodes[run]));
    const key = [name, ...[...tasks].sort((a, b) => a - b)].join(" ");
    if (!this.counts.has(key)) {
      const groups = this.model.grouped([...taskCodes.keys()].filter((run) => tasks.has(taskCodes[run])));
      this.counts.set(key, [...groups.values()].filter((own) => this.setting(name, values, own).values.length > 1).length);
    }
    return this.counts.get(key);
  }

  // One figure of several settings, each given by its runs, compared with a base, as differences in
  // dsnb/analysis/differences.py does. `relevance`: the smallest change that matters.
  compare(base, others, name, values, relevance) {
    const among = this.repeated(name, values, [base, ...others].flat());
    const own = this.setting(name, values, base);
    return others.map((runs) => this.pair(own, this.setting(name, values, runs), name, among, relevance));
  }

  // One pair of settings of which `among` have repeats.
  pair(base, other, name, among, relevance) {
    const confounded = isConfounded(base, other);
    const [ours, theirs] = [base, other].map((one) => moments(confounded ? byHost(one) : one.values));
    const { estimate, error, degrees } = welch(ours, theirs);
    const enough = Math.min(ours.count, theirs.count) >= this.method.fewestRuns; // otherwise medians without an interval
    const margin = enough && degrees ? (this.range.quantile(1 - this.method.confidence, Math.max(among, 2), degrees) * error) / Math.SQRT2 : NaN;
    const linear = this.isPercentage(name);
    const values = enough ? [ours, theirs].map(({ mean }) => (linear ? mean : Math.exp(mean))) : [base.median, other.median];
    const difference = values[1] - values[0];
    const level = (value) => value || NaN; // nothing is relative to 0
    const [low, high] = [estimate - margin, estimate + margin].map((end) => (linear ? end / level(ours.mean) : Math.expm1(end)));
    const change = difference / level(values[0]);
    const { factor } = this.model.figure.get(name);
    const sizes = linear ? [difference, estimate - margin, estimate + margin].map((end) => factor * end) : [change, low, high].map((one) => 100 * one);
    const found = {
      n: theirs.count, baseN: ours.count, values, difference, change, low, high, largest: Math.max(Math.abs(low), Math.abs(high)),
      sizes, unit: linear ? "points" : "%", note: this.note([base, other], confounded, error, linear), within: other.within,
    };
    return { ...found, ...this.inWords({ ...found, verdict: this.verdict(found, relevance) }) };
  }

  verdict({ n, baseN, change, low, high, largest }, relevance) {
    const { verdicts, fewestRuns } = this.method;
    if (Math.min(n, baseN) < fewestRuns) return verdicts.tooFew;
    if (largest <= relevance) return verdicts.noLarger;
    return (low > 0 || high < 0) && Math.abs(change) >= relevance ? verdicts.likely : verdicts.unclear;
  }

  note(pair, confounded, error, linear) {
    const unusable = sum(pair.map((setting) => setting.unusable));
    const notes = [
      confounded && "the settings ran on different hosts, so runs on one host count as one",
      unusable && `${unusable} ok ${unusable === 1 ? "run has" : "runs have"} no ${linear ? "" : "positive "}figure`,
      error < this.method.noSpread && "the figure is the same in every run",
    ];
    return notes.filter(Boolean).join("; ");
  }

  // The change, and what follows it: the verdict with the interval, or with what is missing.
  inWords({ n, baseN, sizes, unit, verdict }) {
    const { verdicts, fewestRuns } = this.method;
    const [change, low, high] = sizes.map((size) => changeText(size, unit));
    const text = Number.isNaN(sizes[0]) ? "" : change;
    if (verdict === verdicts.tooFew) return { verdict, text, reason: `${verdict} (${n} and ${baseN} runs; ${fewestRuns} of each are needed)` };
    const said = verdict === verdicts.noLarger ? `no difference larger than ${larger(low, high)}` : verdict;
    return { verdict, text, reason: `${said} (${low} to ${high})` };
  }
}

// A change with a bar, coloured by whether it is for the better; grey unless the verdict is that there is one.
const changeCell = (model, name, { difference, change, text, verdict, reason, note, within }) => {
  if (!text) return element("td", {}, "");
  const good = (difference > 0) === (model.better(name) === "higher");
  const kind = !model.better(name) || verdict !== model.method.verdicts.likely ? "dsnb-same" : good ? "dsnb-better" : "dsnb-worse";
  const bar = element("span", { class: `dsnb-change ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.min(Math.abs(change) || 0, 1));
  const timed = name.startsWith("tokens_per_s") || name === "step_time_s"; // the figures that the steps' spread is about
  const remarks = [note, timed && within].filter(Boolean).join("; ");
  const remark = remarks ? element("span", { class: "dsnb-remark" }, remarks) : null;
  return element("td", {}, element("span", { class: "dsnb-figure" }, text), bar, element("span", { class: "dsnb-verdict" }, reason), remark);
};

// What the verdicts of the table rely on, and how many runs are missing for them.
const verdictNotes = (model, effects, relevance) => {
  if (!effects.length) return null;
  const { fewestRuns, verdicts, note } = model.method;
  const all = effects.flatMap(({ changes }) => changes).filter(({ text }) => text);
  const few = all.filter(({ verdict }) => verdict === verdicts.tooFew);
  const least = Math.min(...few.map(({ n, baseN }) => Math.min(n, baseN)));
  const advice = few.length
    ? `Too few runs for ${few.length === all.length ? "any verdict" : `${few.length} of ${all.length} verdicts`}: ${fewestRuns} of each setting are needed, ` +
      `up to ${fewestRuns - least} more than there are (dsnb sweep PARAMS --set repeats=${fewestRuns} adds them). `
    : "";
  return element("p", { class: "dsnb-soft" }, `${advice}${note.replace("{relevance}", percent(relevance))}`);
};
