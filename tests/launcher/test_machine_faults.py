"""What the machine is to blame for: the run is repeated by the next call, or refused before it starts."""

import json
import subprocess
import sys

import pytest

from dsnb.launcher.outcome import MACHINE_FAULTS, without_machine_faults
from dsnb.settings import checks
from dsnb.system import hardware
from tests.support.small_sweep import PARAMS


def test_a_failure_by_the_machines_fault_is_an_interruption():
    for words, advice in MACHINE_FAULTS.items():
        status, cause = without_machine_faults("failed", f"rank 1: OSError: {words}: '/tmp/x'")
        assert status == "interrupted"
        assert cause == f"rank 1: OSError: {words}: '/tmp/x'; {advice} and start the sweep again"
        assert without_machine_faults("failed", cause) == (status, cause)  # the advice is given once
    for other in (("failed", "rank 0: ValueError: 3 is odd"), ("oom", "Too many open files"), ("ok", None)):
        assert without_machine_faults(*other) == other


@pytest.mark.process
def test_a_run_that_compiled_nothing_is_not_ok(run_small):
    result, paths = run_small(worker="tests.workers.uncompiled", compile="default", steps=1)
    assert result.status == "failed"
    assert result.cause == "compile is 'default': torch.compile captured no graph, so nothing was compiled"
    assert json.loads((paths.dir / "worker.json").read_text())["compiled_graphs"] == 0


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_variable_that_disables_compilation_is_refused(small, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    said = f"compile is set, but the environment variable {name} is 1, which disables torch.compile: unset it"
    assert checks.unsupported(small(compile="default").model_dump()) == [said]
    assert checks.unsupported(small().model_dump()) == []
    monkeypatch.setenv(name, "0")
    assert checks.unsupported(small(compile="default").model_dump()) == []


@pytest.mark.process
def test_a_sweep_without_torch_says_what_to_install_and_leaves_no_folder(tmp_path):
    (tmp_path / "small.yaml").write_text(PARAMS)
    without = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: n != 'torch' and f(n, *a) or None"
    )
    asked = [sys.executable, "-c", f"{without}\nfrom dsnb.cli.app import main; main()", "sweep", "small.yaml"]
    found = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert "error: training needs torch: pip install 'dsnb[train]'" in found.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_without_loopback_no_rank_retries_for_minutes(small, monkeypatch):
    monkeypatch.setattr(hardware, "loopback_works", lambda: False)
    said = "127.0.0.1 cannot be reached, and ranks meet there: bring it up with `ip link set lo up`"
    assert checks.unsupported(small().model_dump()) == [said]
