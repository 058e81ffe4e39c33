// The Pareto front of points {x, y} with a tolerance; the same rules as pareto_front in dsnb/analysis/tradeoffs.py.

const paretoFront = (points, xBetter, yBetter, tolerance) => {
  const [signX, signY] = [xBetter, yBetter].map((better) => (better === "higher" ? -1 : 1));
  const sorted = [...points].sort((a, b) => signX * (a.x - b.x) || signY * (a.y - b.y));
  let best = Infinity;
  const strict = sorted.filter((point) => {
    const value = signY * point.y;
    if (!(value < best)) return false;
    best = value;
    return true;
  });
  if (!tolerance || points.some(({ x, y }) => x <= 0 || y <= 0)) return strict;
  const margin = -Math.log1p(-tolerance);
  const logs = new Map(strict.map((point) => [point, [signX * Math.log(point.x), signY * Math.log(point.y)]]));
  const total = (point) => logs.get(point)[0] + logs.get(point)[1];
  const kept = [];
  for (const point of [...strict].sort((a, b) => total(a) - total(b))) { // nothing is beaten by what follows it
    const beats = (other) => {
      const gains = [0, 1].map((side) => logs.get(point)[side] - logs.get(other)[side]);
      return Math.max(...gains) > margin && Math.min(...gains) >= -margin;
    };
    if (!kept.some(beats)) kept.push(point);
  }
  return strict.filter((point) => kept.includes(point));
};
