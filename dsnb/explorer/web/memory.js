// Memory beside what a GPU has: the line of its capacity, runs that did not fit, headroom.

class GpuMemory {
  constructor(model, { figures, fullest, capacity_gib, allocated_gib, requested_gib, advice, texts }) {
    Object.assign(this, { model, fullest, allocated: allocated_gib, requested: requested_gib, advice, texts });
    this.figures = new Set(figures);
    this.perRun = Array.isArray(capacity_gib) ? capacity_gib : null;
    this.common = this.perRun ? null : capacity_gib;
  }

  // What the GPU of a run has in GiB, null if unknown.
  capacity(run) {
    return (this.perRun ? this.perRun[run] : this.common) ?? null;
  }

  // What a run that ran out of memory would have needed at least, in GiB; NaN if unknown.
  needed(run) {
    return this.allocated[run] + (this.requested[run] ?? 0);
  }

  // The share of the GPU that a run left free; NaN if unknown.
  headroom(run) {
    const figure = this.fullest.find((name) => !Number.isNaN(this.model.columns.get(name)?.[run] ?? NaN));
    const capacity = this.capacity(run);
    return figure && capacity ? 1 - this.model.columns.get(figure)[run] / capacity : NaN;
  }

  // Where to draw each of the runs that did not fit, on an axis that shows memory: [{run, gib}].
  shortages(name, runs) {
    if (!this.figures.has(name)) return [];
    return runs.map((run) => ({ run, gib: this.needed(run) })).filter(({ gib }) => !Number.isNaN(gib));
  }

  // The capacities to draw on an axis whose values are these: those that are near, so that they do not squash the rest.
  lines(name, runs, values) {
    if (!this.figures.has(name)) return [];
    const most = values.reduce((a, b) => Math.max(a, b), 0);
    const known = new Set(runs.map((run) => this.capacity(run)).filter((capacity) => capacity));
    return [...known].filter((capacity) => capacity <= 2 * most).sort((a, b) => a - b);
  }

  // The capacities that the chart leaves out, as a sentence.
  note(name, runs, values) {
    if (!this.figures.has(name)) return "";
    const drawn = this.lines(name, runs, values);
    const known = new Set(runs.map((run) => this.capacity(run)).filter((capacity) => capacity && !drawn.includes(capacity)));
    const amounts = [...known].sort((a, b) => a - b).map((gib) => gib.toLocaleString("en-US", { maximumFractionDigits: 1 }));
    return amounts.length ? `The GPU has ${amounts.join(" or ")} GiB, which is outside the chart.` : "";
  }

  // The data of the lines of an axis, for the chart.
  marks(side, capacities) {
    return capacities.map((gib) => ({ [side]: gib, text: `GPU: ${gib.toLocaleString("en-US", { maximumFractionDigits: 1 })} GiB` }));
  }

  // A run's headroom and shortage as sentences, for its tooltip and its details.
  sentences(run) {
    const capacity = this.capacity(run);
    const text = (gib) => `${gib.toFixed(2)} GiB`;
    const headroom = this.headroom(run);
    const lines = Number.isNaN(headroom) ? [] : [`${(100 * headroom).toFixed(0)} % of the GPU's ${text(capacity)} left`];
    if (this.allocated[run] !== undefined) {
      const requested = this.requested[run] === undefined ? "" : `, ${text(this.requested[run])} more requested`;
      lines.push(`${text(this.allocated[run])} allocated${requested}${capacity ? `; the GPU has ${text(capacity)}` : ""}`);
    }
    return lines;
  }
}
