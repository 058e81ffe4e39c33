"""Measure a report's size and how fast its explorer responds: `python -m benchmarks.explorer --runs 100 1000`.

It writes a sweep of synthetic runs, reports it with `write_report`, opens the page in Chromium, and
changes controls by clicks and change events (a region by its state). A latency is the time from the
event to the first frame after the last redraw. The last line of the output is JSON.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from dsnb.show.report import write_report
from tests.support import made_up
from tests.support.browser import launch

CHANGES = """
async () => {
  const root = document.querySelector(".dsnb-explorer");
  const explorer = root.dsnb;
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const choose = (label, value) => () => {
    const select = [...root.querySelectorAll(".dsnb-field label")].find((one) => one.textContent === label).control;
    select.value = value;
    select.dispatchEvent(new Event("change"));
  };
  const chips = [...root.querySelectorAll(".dsnb-chip input")];
  const brush = (low, high) => () => {
    const { x_low, x_high, y_low, y_high } = explorer.scatter.picture.signals;
    const edge = (from, to, share) => from + (to - from) * share;
    const range = (from, to) => [edge(from, to, low), edge(from, to, high)];
    explorer.set({ brush: { x: range(x_low, x_high), y: range(y_low, y_high) } });
  };
  const kinds = {
    filter: chips.flatMap((chip) => [() => chip.click(), () => chip.click()]),
    figure: ["step_time_mean_s", "power_w", "days", "tokens_per_s_per_gpu"].map((name) => choose("Y axis", name)),
    colour: ["gpus", "parallelism", "precision"].map((name) => choose("Colour by", name)),
    brush: [brush(0.1, 0.6), brush(0.3, 0.9), brush(0, 1)],
    scale: ["log", "linear"].map((name) => choose("Y scale", name)),
  };
  await painted();
  const times = {};
  for (const [kind, changes] of Object.entries(kinds)) {
    times[kind] = [];
    for (const change of changes) {
      await painted();
      const start = performance.now();
      change();
      await painted();
      times[kind].push(performance.now() - start);
    }
  }
  return times;
}
"""


def measure(count: int) -> dict[str, object]:
    """Return the page's size in MB, times in s and latencies in ms for a sweep of `count` runs."""
    with tempfile.TemporaryDirectory() as folder:
        table = made_up.runs(
            count, repeats=max(3, -(-count // 1000))
        )  # there are about 1,100 settings
        assert len(table) == count
        made_up.write_folders(table, Path(folder) / "made_up")
        start = time.perf_counter()
        page = write_report(Path(folder) / "made_up")
        written_s = time.perf_counter() - start
        with sync_playwright() as playwright, launch(playwright) as browser:
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.locator(".dsnb-count").wait_for()
            opened_s = time.perf_counter() - start
            times = tab.evaluate(CHANGES)
        latencies_ms = [time_ms for kind in times.values() for time_ms in kind]
        return {
            "runs": count,
            "page_mb": page.stat().st_size / 1e6,
            "report_s": written_s,
            "open_s": opened_s,
            "median_ms": statistics.median(latencies_ms),
            "slowest_ms": max(latencies_ms),
            **{f"{kind}_ms": statistics.median(values) for kind, values in times.items()},
        }


def main() -> None:
    """Measure and print one line for each number of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000])
    results = []
    for count in parser.parse_args().runs:
        results.append(measure(count))
        print(", ".join(f"{name} {value:,.4g}" for name, value in results[-1].items()), flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
