"""The first screen of the page: the answer in tiles, the chart with names, and the run beside it."""

import itertools

import pytest

import dsnb
from tests.show.explorer.test_page import three_sizes
from tests.support import made_up
from tests.support.browser import CALM, ROOT, Tabs

SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def tabs(chromium):
    return Tabs(chromium)


@pytest.fixture(scope="module")
def few(tabs, tmp_path_factory):
    """Give the page of five settings whose figures are known, on 1, 2 and 4 GPUs."""
    explorer = dsnb.explore(three_sizes()).set(
        objective="time", train_tokens=864e6, prices={"GPU": 2}
    )
    return tabs.open(explorer.save(tmp_path_factory.mktemp("few") / "page.html"), SIZE)


@pytest.fixture(scope="module")
def many(tabs, tmp_path_factory):
    """Give the page of a hundred settings."""
    explorer = dsnb.explore(made_up.runs(300, seed=1, gpus=[1, 4]))
    return tabs.open(explorer.save(tmp_path_factory.mktemp("many") / "page.html"), SIZE)


def box(tab, selector):
    """Return the edges of the first visible node."""
    found = tab.locator(selector).locator("visible=true").first.bounding_box()
    return found["x"], found["y"], found["x"] + found["width"], found["y"] + found["height"]


def test_four_tiles_are_the_answer(few):
    tiles = few.tab.locator(".dsnb-tiles > div").evaluate_all(
        "(tiles) => tiles.map((tile) => [...tile.children].map((part) => part.textContent))"
    )
    power_w = three_sizes()["power_w"].iloc[0]
    assert tiles == [
        [
            "Train gpt2 with",
            "ZeRO 1, bf16, micro-batch 1",
            "on 4 GPUs; 4 sequences, 2,048 tokens a step",
        ],
        ["Time", "25 days", "864 million tokens at 400 tokens/s: one run"],
        ["Cost", "$4,800", f"2,400 GPU-hours at $2.00 each; {2400 * power_w / 1000:.0f} kWh"],
        ["Memory", "10 of 140 GiB", "GPU memory, 130 GiB free"],
    ]


def test_the_answer_and_its_chart_are_on_the_first_screen(few, many):
    for page in (few, many):
        tab = page.tab
        assert box(tab, ".dsnb-tiles")[3] < 0.4 * SIZE["height"]
        assert box(tab, ".dsnb-first canvas")[1] < 0.6 * SIZE["height"]
        assert tab.locator("details[open]").count() == 0


TEXTS = f"""() => {ROOT}.scatter.view.scenegraph().root.items[0].items
  .filter(({{ marktype }}) => marktype === "text").flatMap(({{ items }}) => items)
  .filter(({{ opacity, text }}) => opacity !== 0 && text)
  .map(({{ text, bounds }}) => [text, bounds.x1, bounds.y1, bounds.x2, bounds.y2])"""


def test_names_do_not_overlap_and_begin_with_the_answer(many):
    named = many.tab.evaluate(f"{ROOT}.scatter.picture.data.names.map(({{ name }}) => name)")
    texts = many.tab.evaluate(TEXTS)
    assert {named[0]} <= {text for text, *_ in texts}
    assert len({*named} & {text for text, *_ in texts}) >= 2
    for one, other in itertools.combinations(texts, 2):
        left, top, right, bottom = one[1:]
        assert right <= other[1] or other[3] <= left or bottom <= other[2] or other[4] <= top


def test_labels_stay_in_the_plot_and_off_the_rings(many):
    names, rings, width, height = many.tab.evaluate(
        f"""() => {{
          const {{ view }} = {ROOT}.scatter;
          const {{ items }} = view.scenegraph().root.items[0];
          const box = ({{ bounds }}) => [bounds.x1, bounds.y1, bounds.x2, bounds.y2];
          const boxes = (kind, name) => items
            .filter((mark) => mark.marktype === kind && mark.items[0]?.datum[name])
            .flatMap((mark) => mark.items.map(box));
          const size = ["width", "height"].map((side) => view.signal(side));
          return [boxes("text", "weight"), boxes("symbol", "number"), ...size];
        }}"""
    )
    assert len(names) > 2
    assert rings
    near = 2  # pixels: a font's bounds are a little larger than its letters
    for left, top, right, bottom in names:
        assert -near <= left < right <= width + near
        assert -near <= top < bottom <= height + near
        for ring_left, ring_top, ring_right, ring_bottom in rings:
            is_beside = right < ring_left + near or ring_right - near < left
            assert is_beside or bottom < ring_top + near or ring_bottom - near < top


def test_the_star_of_few_settings_is_no_answer(tabs, tmp_path):
    explorer = dsnb.explore(three_sizes()[:2])
    page = tabs.open(explorer.save(tmp_path / "page.html"), SIZE)
    legend = page.tab.locator(".dsnb-legend").inner_text()
    assert "the best measured so far" in legend
    assert "the answer" not in legend


def test_the_better_corner_is_where_both_figures_are_better(few):
    corner = """(state) => {
      %s.set(state);
      return %s.scatter.picture.data.corner.map(({ right, up }) => [right, up]);
    }""".replace("%s", ROOT)
    tab = few.tab
    for x, y, found in (
        ("peak_allocated_gib", "tokens_per_s", [[0, 1]]),
        ("tokens_per_s", "step_time_mean_s", [[1, 0]]),
        ("gpus", "tokens_per_s", []),
    ):
        assert tab.evaluate(corner, {"x": x, "y": y}) == found
    tab.evaluate(f"{ROOT}.set({ROOT}.model.state)")


def test_a_run_is_shown_beside_the_chart(many):
    tab = many.tab
    run = tab.evaluate(f"{ROOT}.scatter.view.data('points').at(-1).id")
    tab.evaluate(f"{ROOT}.clicked({{ id: {run} }})")
    tab.evaluate(CALM)
    chart = box(tab, ".dsnb-first > .dsnb-card")
    left, top, _, _ = box(tab, ".dsnb-side h4")
    assert left > chart[2]
    assert chart[1] <= top < chart[3]
    assert top < SIZE["height"]
    assert f"run {tab.evaluate(f'{ROOT}.model.repeats[{run}]')}" in tab.locator("h4").inner_text()
    tab.get_by_role("button", name="Close").press("Enter")
    assert not tab.locator(".dsnb-side h4").is_visible()


def test_the_star_stands_on_a_run_of_the_answer(few, many):
    for page in (few, many):
        for x in ("peak_allocated_gib", "gpus"):
            stands = page.tab.evaluate(
                f"""(x) => {{
                  {ROOT}.set({{ x }});
                  const {{ points, best: [star] }} = {ROOT}.scatter.picture.data;
                  const runs = {ROOT}.model.whole.get({ROOT}.card.answer.best.experiment);
                  return points.some((one) => one.x === star.x && one.y === star.y && runs.includes(one.id));
                }}""",
                x,
            )
            assert stands
        page.tab.evaluate(f"{ROOT}.set({ROOT}.model.state)")
        assert page.said == []
