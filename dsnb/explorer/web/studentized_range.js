// The studentized range distribution, computed as in dsnb/analysis/studentized_range.py; tests compare both.

class StudentizedRange {
  // `step` and `widest`: the grid of the integral over the range at known spread.
  constructor({ step, widest }) {
    Object.assign(this, { step, widest, tables: new Map(), quantiles: new Map() });
    this.half = Math.round(widest / 2 / step);
  }

  // The normal distribution function on the grid from -widest / 2 to widest / 2, and as far to its left as a range reaches.
  below() {
    if (this.cumulative) return this.cumulative;
    const density = (z) => Math.exp((-z * z) / 2) / Math.sqrt(2 * Math.PI);
    this.cumulative = new Float64Array(4 * this.half + 1);
    for (let index = 1; index < this.cumulative.length; index += 1) {
      const z = (index - 3 * this.half) * this.step;
      const simpson = density(z - this.step) + 4 * density(z - this.step / 2) + density(z);
      this.cumulative[index] = this.cumulative[index - 1] + (simpson * this.step) / 6;
    }
    return this.cumulative;
  }

  // P(range of `groups` standard normal values > w) for w = 0, step, ..., widest.
  exceedanceAtKnownSpread(groups) {
    if (this.tables.has(groups)) return this.tables.get(groups);
    const { half, step } = this;
    const below = this.below();
    const exceeds = new Float64Array(2 * half + 1).map((_, width) => {
      let within = 0;
      for (let index = 0; index <= 2 * half; index += 1) {
        const z = (index - half) * step;
        within += (below[2 * half + index] - below[2 * half + index - width]) ** (groups - 1) * Math.exp((-z * z) / 2);
      }
      return Math.min(Math.max(1 - (groups * step * within) / Math.sqrt(2 * Math.PI), 0), 1);
    });
    this.tables.set(groups, exceeds);
    return exceeds;
  }

  // The probability that the studentized range of equal groups exceeds a positive value.
  exceedance(value, groups, degrees) {
    let scale = Math.log(2) + (degrees / 2) * Math.log(degrees / 2) - (degrees % 2 ? Math.log(Math.PI) / 2 : 0);
    for (let half = degrees / 2 - 1; half > 0; half -= 1) scale -= Math.log(half); // log of the gamma function
    const terms = this.exceedanceAtKnownSpread(groups).map((exceeds, index) => {
      const spread = (index * this.step) / value;
      const power = degrees > 1 ? (degrees - 1) * Math.log(spread) : 0;
      return (exceeds * Math.exp(scale + power - (degrees * spread * spread) / 2) * this.step) / value;
    });
    return Math.min(1, terms.reduce((sum, term) => sum + term, 0) - terms[0] / 2);
  }

  // The value that the studentized range exceeds with a probability.
  quantile(probability, groups, degrees) {
    const key = `${probability} ${groups} ${degrees}`;
    if (this.quantiles.has(key)) return this.quantiles.get(key);
    let [low, high] = [0, 1];
    while (this.exceedance(high, groups, degrees) > probability) [low, high] = [high, 2 * high];
    while (high - low > 1e-7 * high) {
      const middle = (low + high) / 2;
      if (this.exceedance(middle, groups, degrees) > probability) low = middle;
      else high = middle;
    }
    this.quantiles.set(key, high);
    return high;
  }
}
