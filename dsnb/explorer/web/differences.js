// How settings differ over repeated runs: the method of dsnb/analysis (replicates.py, intervals.py, comparison_table.py),
// with its constants from the page's data; tests compare both. docs/explanation/statistics.md explains it.

const sum = (values) => values.reduce((total, value) => total + value, 0);
const average = (values) => (values.length ? sum(values) / values.length : NaN);

// Mean, variance (divisor n - 1) and number of logarithms; the variance of a single one is unknown.
const moments = (logs) => {
  const mean = average(logs);
  const variance = logs.length > 1 ? sum(logs.map((value) => (value - mean) ** 2)) / (logs.length - 1) : NaN;
  return { mean, variance, count: logs.length };
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

// One value per host: the mean of the logarithms of its runs.
const byHost = ({ logs, hosts }) => [...new Set(hosts)].map((host) => average(logs.filter((_, index) => hosts[index] === host)));

// Welch's difference of log means with its standard error, and Satterthwaite's degrees of freedom, 0 if unknown.
const welch = (base, other) => {
  const shares = [base, other].map(({ variance, count }) => variance / count);
  const squared = shares[0] + shares[1];
  const parts = shares.map((share, side) => share ** 2 / ([base, other][side].count - 1));
  const degrees = squared > 0 ? squared ** 2 / (parts[0] + parts[1]) : base.count + other.count - 2;
  const known = Number.isFinite(squared) && Number.isFinite(degrees);
  return { estimate: other.mean - base.mean, error: Math.sqrt(squared), degrees: known ? Math.floor(degrees + 1e-9) : 0 };
};

// A change in per cent as text, with its sign; in percentage points where the figure is a percentage, of which `level`
// is that of the baseline.
const changeText = (change, level) => {
  const value = Number.isNaN(level) ? change : (change * level) / 100;
  const digits = Math.abs(value) < 99.95 ? 1 : 0;
  const text = Math.abs(value).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${text === "0.0" ? "0" : `${value < 0 ? "−" : "+"}${text}`} ${Number.isNaN(level) ? "%" : "points"}`;
};

class Differences {
  constructor(model) {
    Object.assign(this, { model, method: model.method, range: new StudentizedRange(model.method) });
  }

  // The runs of one setting: logarithms and hosts of those with a figure.
  setting(values, runs) {
    const { model } = this;
    const ok = runs.filter((run) => model.ok[run]);
    const used = ok.filter((run) => values[run] > 0);
    const hosts = used.map((run) => model.hosts[run] ?? null);
    const within = used.length === 1 ? model.alone[used[0]] : undefined; // what a single run shows of its spread
    return { logs: used.map((run) => Math.log(values[run])), hosts, unusable: ok.length - used.length, within };
  }

  // One figure of several settings compared with a base, as effects in dsnb/analysis/tradeoffs.py does.
  // `settings` are all that the base was chosen from, by their experiments; `figures`: those that share the error rate.
  // `relevance`: the smallest change that matters.
  compare(settings, base, others, name, figures, relevance) {
    const repeated = [...settings.values()].filter(({ logs }) => logs.length > 1).length;
    const probability = (1 - this.method.confidence) / figures;
    return others.map((other) => this.pair(settings.get(base), settings.get(other), Math.max(repeated, 2), probability, name, relevance));
  }

  pair(base, other, groups, probability, name, relevance) {
    const confounded = isConfounded(base, other);
    const [ours, theirs] = [base, other].map((one) => moments(confounded ? byHost(one) : one.logs));
    const { estimate, error, degrees } = welch(ours, theirs);
    const enough = Math.min(ours.count, theirs.count) >= this.method.fewestRuns; // otherwise the interval is not shown
    const margin = enough && degrees ? (this.range.quantile(probability, groups, degrees) * error) / Math.SQRT2 : NaN;
    const [low, high] = [Math.expm1(estimate - margin), Math.expm1(estimate + margin)];
    const figure = this.model.figure.get(name);
    const found = {
      n: theirs.count, baseN: ours.count, change: Math.expm1(estimate), low, high,
      largest: Math.max(Math.abs(low), Math.abs(high)), level: figure.unit === "%" ? figure.factor * Math.exp(ours.mean) : NaN,
      note: this.note([base, other], confounded, error), within: other.within,
    };
    return { ...found, ...this.inWords({ ...found, verdict: this.verdict(found, relevance) }) };
  }

  verdict({ n, baseN, change, low, high, largest }, relevance) {
    const { verdicts, fewestRuns } = this.method;
    if (Math.min(n, baseN) < fewestRuns) return verdicts.tooFew;
    if (largest <= relevance) return verdicts.noLarger;
    return (low >= 0 || high <= 0) && Math.abs(change) >= relevance ? verdicts.likely : verdicts.unclear;
  }

  note(pair, confounded, error) {
    const unusable = sum(pair.map((setting) => setting.unusable));
    const notes = [
      confounded && "the settings ran on different hosts, so runs on one host count as one",
      unusable && `${unusable} ok ${unusable === 1 ? "run has" : "runs have"} no positive figure`,
      error < this.method.noSpread && "the figure is the same in every run",
    ];
    return notes.filter(Boolean).join("; ");
  }

  // The change, and what follows it: the verdict with the interval, or with what is missing.
  inWords({ n, baseN, change, low, high, largest, level, verdict }) {
    const { verdicts, fewestRuns } = this.method;
    const [text, from, to] = [change, low, high].map((value) => changeText(100 * value, level));
    const known = Number.isNaN(change) ? "" : text;
    if (verdict === verdicts.noLarger) {
      const points = Number.isNaN(level) ? 100 * largest : largest * level;
      const rounded = Number((Math.ceil(10 * points - 1e-6) / 10).toPrecision(6));
      return { verdict, text: known, reason: `no difference larger than ${rounded} ${Number.isNaN(level) ? "%" : "points"}` };
    }
    const detail = verdict === verdicts.tooFew ? `${n} and ${baseN} runs; ${fewestRuns} of each are needed` : `${from} to ${to}`;
    return { verdict, text: known, reason: `${verdict} (${detail})` };
  }
}

// A change with a bar, coloured by whether it is for the better; grey unless the verdict is that there is one.
const changeCell = (model, name, { change, text, verdict, reason, note, within }) => {
  if (Number.isNaN(change)) return element("td", {}, "");
  const good = (change > 0) === (model.better(name) === "higher");
  const kind = !model.better(name) || verdict !== model.method.verdicts.likely ? "dsnb-same" : good ? "dsnb-better" : "dsnb-worse";
  const bar = element("span", { class: `dsnb-change ${kind}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.min(Math.abs(change), 1));
  const timed = name.startsWith("tokens_per_s") || name === "step_time_s"; // the figures that the steps' spread is about
  const remarks = [note, timed && within].filter(Boolean).join("; ");
  const remark = remarks ? element("span", { class: "dsnb-remark" }, remarks) : null;
  return element("td", {}, element("span", { class: "dsnb-figure" }, text), bar, element("span", { class: "dsnb-verdict" }, reason), remark);
};

// What the verdicts of the table rely on, and how many runs are missing for them.
const verdictNotes = (model, effects, relevance) => {
  if (!effects.length) return null;
  const { fewestRuns, verdicts, note } = model.method;
  const all = effects.flatMap(({ changes }) => changes).filter(({ change }) => !Number.isNaN(change));
  const few = all.filter(({ verdict }) => verdict === verdicts.tooFew);
  const least = Math.min(...few.map(({ n, baseN }) => Math.min(n, baseN)));
  const advice = few.length
    ? `Too few runs for ${few.length === all.length ? "any verdict" : `${few.length} of ${all.length} verdicts`}: ${fewestRuns} of each setting are needed, ` +
      `up to ${fewestRuns - least} more than there are (dsnb sweep PARAMS --set repeats=${fewestRuns} adds them). `
    : "";
  return element("p", { class: "dsnb-soft" }, `${advice}${note.replace("{relevance}", percent(relevance))}`);
};
