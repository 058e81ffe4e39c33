"""The calculator: its answers are those of `dsnb recommend`, and the page shows what Python says."""

import random

import pytest

from docs import make_calculator
from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.prediction import traces
from dsnb.show.calculator import data, page
from dsnb.show.calculator.data import GRID, WHOLE, Cell
from tests.support import browser

SMALL = "gpt2"
"""A model whose traces take a second each."""
CELL = Cell("llama-3.1-8b", "H100", 8, 4096, WHOLE)


def computed():
    table = data.load()
    return {cell: record for cell in GRID.cells() if (record := table.record(cell))}


def test_answers_rest_on_the_constants_of_today():
    again = "predictions have changed: python -m docs.make_calculator"
    assert data.load().fingerprint == data.fingerprint(), again


def test_texts_are_those_of_the_templates_of_today():
    again = "templates of lines have changed: python -m docs.make_calculator"
    assert data.load().wording == data.wording(), again


def test_random_cells_are_what_recommend_says():
    cells = [cell for cell in computed() if cell.model == SMALL and cell.gpus == 8]
    some = random.sample(cells, 12)
    assert list(make_calculator.differences(some, data.load())) == []


def test_what_does_not_depend_on_the_gpu_is_computed_once(monkeypatch):
    """Shared or not, the records of a cell are equal."""
    cell = Cell(SMALL, "H100", 8, 1024, WHOLE)
    alone = make_calculator.answered(cell)
    counted = []
    whole = make_calculator.step_time.work

    def work(experiment, masked=False):
        counted.append(experiment.name)
        return whole(experiment, masked)

    monkeypatch.setattr(make_calculator.step_time, "work", work)
    with make_calculator.shared():
        other = make_calculator.answered(cell._replace(gpu="H200"))
        first = len(counted)
        again = make_calculator.answered(cell)
    assert other != again == alone
    assert len(counted) < 1.5 * first


def test_times_follow_from_the_tokens():
    """36 million tokens at 1,000 a second are 10 hours on each of 8 GPUs."""
    record = {"rate": 1000.0, "low": 500.0, "high": 2000.0, "tight": 0, "error": 10.0}
    facts = data.time_facts(CELL, record, 36e6)
    assert [facts[name] for name in ("time", "times", "hours")] == ["10 hours", "5 to 20", "80"]
    tight = data.time_facts(CELL, record | {"tight": 1, "low": 0}, 36e6)
    assert (tight["least"], tight["times"]) == ("at least", "")


def test_what_was_not_computed_has_no_record():
    packed = data.packed({CELL: {"no": "It does not fit."}}, "2026-01-01")
    table = data.read(packed)
    assert table.record(CELL)["no"] == "It does not fit."
    assert table.record(CELL._replace(gpus=4)) is None
    assert table.date == "2026-01-01"


def test_a_build_goes_on_from_the_answers_of_the_package(monkeypatch, tmp_path):
    """Cells that differ in the GPU only are found together; one of two such groups is whole here."""
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    whole, some = make_calculator.groups()[:2]
    records = {cell: {"no": f"{cell.gpu} is too small."} for cell in [*whole, some[0]]}
    known = data.read(data.packed(records, "2026-01-01", make_calculator._code()))
    assert make_calculator.unpack(known) == 1
    kept = json_files.read_json(make_calculator._file(whole[0]))
    assert kept["H100"]["no"] == "H100 is too small."
    assert make_calculator.unpack(known) == 0  # it is there now
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "other"))
    of_others = data.read(data.packed(records, "2026-01-01", "other code"))
    assert make_calculator.unpack(of_others) == 0


def test_an_answer_without_a_setting_that_was_not_traced_is_not_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    for name in ("_make", "WORKERS"):  # as they are, after the test
        monkeypatch.setattr(traces, name, getattr(traces, name))
    cells = make_calculator.groups()[0]
    make_calculator.group(cells, known=True)
    assert not make_calculator._file(cells[0]).exists()
    lost = {"key": SettingsError("the model could not be traced: it printed nothing")}
    with pytest.raises(make_calculator._Untraced, match="it printed nothing"):
        make_calculator._strictly(lambda kind, missing: lost, "memory", {})
    assert make_calculator._strictly(lambda kind, missing: {}, "memory", {}) == {}


def test_the_page_is_small():
    assert len(page.calculator()) < 2e6


def test_a_model_has_a_page_with_a_table_by_gpu():
    text = page.of_model(CELL.model)
    assert f"<title>Train {CELL.model}: fits on, days, cost</title>" in text
    record = data.load().record(CELL)
    facts = data.time_facts(CELL, record, data.usual_tokens(CELL))
    for shown in (facts["time"], facts["times"], record["train.0"], record["memory.1"]):
        assert shown in text
    assert f'href="../calculator.html#model={CELL.model}"' in text
    assert f'href="{CELL.model}.html"' in page.index()


@pytest.fixture(scope="module")
def shown(chromium, tmp_path_factory):
    """The page in a tab, with what it said and asked for."""
    home = tmp_path_factory.mktemp("site")
    page.write_site(home)
    watched = browser.Watched(chromium.new_context())
    watched.tab.goto((home / "calculator.html").as_uri())
    watched.tab.wait_for_selector(".calc-result > section")
    return watched


def ask(tab, **asked):
    text = "&".join(f"{name}={value}" for name, value in asked.items())
    tab.evaluate("text => { location.hash = text; }", text)
    tab.evaluate(browser.CALM)


LINES = """() => {
  const { calculator } = document.querySelector('.calc');
  const { asked } = calculator;
  return calculator.lines(asked, calculator.record(asked)).map(([, cells]) => cells);
}"""


@pytest.mark.process
def test_the_page_shows_the_lines_of_python(shown):
    cells = computed()
    some = random.sample(list(cells), 25)
    for cell in some:
        for tokens, price in ((None, 0), (3e9, 2.5), (15e12, 0.4)):
            texts = {"tokens": f"{tokens:.0f}" if tokens else "", "price": str(price or "")}
            ask(shown.tab, **cell._asdict(), **texts)
            expected = [list(one.cells) for one in data.lines(cell, cells[cell], tokens, price)]
            assert shown.tab.evaluate(LINES) == expected, cell


@pytest.mark.process
def test_the_page_is_accessible_at_each_width_and_asks_for_nothing(shown):
    ask(shown.tab, **CELL._asdict(), price="2.5")
    for width, scheme in ((1440, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        shown.tab.set_viewport_size({"width": width, "height": 900})
        shown.tab.emulate_media(color_scheme=scheme)
        assert browser.violations(shown.tab) == []
        assert shown.tab.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.outside == []
    assert shown.said == []


@pytest.mark.process
def test_the_address_holds_the_question_and_the_command_goes_further(shown):
    ask(shown.tab, **CELL._asdict(), tokens="300B", price="2.5")
    command = shown.tab.text_content(".calc-command")
    asked = "--gpu H100 --gpus 8 --seq-len 4096 --tokens 300B --price 2.5"
    assert command == f"dsnb recommend llama-3.1-8b {asked}"
    assert "at $2.50 a GPU-hour" in shown.tab.text_content(".calc-time")
    shown.tab.get_by_label("GPUs", exact=True).select_option("8")
    shown.tab.get_by_label("Tokens").fill("15T")
    shown.tab.keyboard.press("Tab")
    assert "tokens=15T" in shown.tab.evaluate("location.hash")
    assert "15 trillion tokens" in shown.tab.text_content(".calc-result h2")


@pytest.mark.process
def test_each_table_of_other_gpus_has_headings(shown):
    ask(shown.tab, **CELL._asdict(), price="2.5")
    for table in shown.tab.query_selector_all(".calc-others table"):
        heads = [head.text_content() for head in table.query_selector_all("thead th")]
        assert len(heads) == len(table.query_selector_all("tbody tr:first-child > *"))
    assert len(shown.tab.query_selector_all(".calc-others table")) == 2


@pytest.mark.process
def test_time_hours_and_cost_of_a_tight_setting_are_the_least(shown):
    tight = ((cell, record) for cell, record in computed().items() if record["tight"])
    cell, record = next(one for one in tight if one[0].seq_len == GRID.lengths(one[0].model)[0])
    tokens = data.usual_tokens(cell)
    facts = data.time_facts(cell, record, tokens)
    ask(shown.tab, **cell._asdict(), price="2.5")
    title = f"{cell.gpus} {cell.gpu}"
    rows = shown.tab.query_selector_all(".calc-others tbody tr")
    cells = [[one.text_content() for one in row.query_selector_all("th, td")] for row in rows]
    time, times, hours, cost = next(row[1:5] for row in cells if row[0] == title)
    assert [time, times, hours] == [f"at least {facts['time']}", "", f"at least {facts['hours']}"]
    assert cost.startswith("at least $")
    assert f"at least {facts['hours']} GPU-hours" in page.of_model(cell.model)


@pytest.mark.process
def test_a_model_is_found_by_a_part_of_its_name_and_texts_of_an_address_stay_texts(shown):
    ask(shown.tab, model="meta-llama/llama-3.1-8b", gpu="H100", gpus="8")
    assert "llama-3.1-8b on 8 H100" in shown.tab.text_content(".calc-result h2")
    ask(shown.tab, model="llama-3.1-8b", gpu="4090", gpus="8")
    assert "llama-3.1-8b on 8 RTX 4090" in shown.tab.text_content(".calc-result h2")
    for asked in ({"gpu": "H999"}, {"gpus": "7"}, {"seq_len": "999"}):
        ask(shown.tab, model="llama-3.1-8b", **asked)
        problem = shown.tab.text_content(".calc-problem")
        assert problem.startswith("The page has no such choice: ")
        assert problem.endswith(f": {next(iter(asked.values()))}. Choose another above.")
    ask(shown.tab, model="<img src=x onerror=alert(1)>")
    assert "does not know this model" in shown.tab.text_content(".calc-problem")
    assert shown.tab.query_selector("main img") is None
    assert shown.said == []


@pytest.mark.process
def test_pages_of_models_are_accessible(shown, tmp_path):
    file = tmp_path / "model.html"
    file.write_text(page.of_model(CELL.model), encoding="utf-8")
    shown.tab.set_viewport_size({"width": 390, "height": 900})
    shown.tab.goto(file.as_uri())
    assert shown.tab.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.violations(shown.tab) == []
