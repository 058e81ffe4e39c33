"""`dsnb sweep`: its exit code says whether every run is ok."""

import pytest

from dsnb.settings.records.result import Result
from tests.cli.test_app import dsnb
from tests.support import made_up

PARAMS = """
name: two
defaults: {model: gpt2-tiny, device: cpu, precision: fp32}
grid: {zero_stage: [0, 1]}
repeats: 1
"""


@pytest.mark.parametrize(
    ("statuses", "exit_code"),
    [(("ok", "ok"), 0), (("ok", "failed"), 3), (("oom", "timeout"), 3)],
)
def test_the_exit_code_is_3_if_a_run_is_not_ok(monkeypatch, tmp_path, statuses, exit_code):
    results = [Result(status, None, {}, {}, {}, tmp_path / status) for status in statuses]
    monkeypatch.setattr("dsnb.measure.sweep.run.run_sweep", lambda *_, **__: results)
    monkeypatch.setattr("dsnb.results.runs.load.load_runs", lambda _: made_up.runs(3))
    (tmp_path / "two.yaml").write_text(PARAMS)
    words = ("sweep", tmp_path / "two.yaml", "--output", tmp_path / "out")
    code, out, _ = dsnb(monkeypatch, *words)
    assert code == exit_code
    assert out.endswith(f"Next: dsnb report {tmp_path / 'out'}\n")
