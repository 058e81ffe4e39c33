"""The cache of traces: what is made once, and what is another trace."""

import io
import json
from types import SimpleNamespace

import pytest

from dsnb.errors import SettingsError
from dsnb.prediction import traces
from tests.prediction.made_up import RECORD, TRACE, given
from tests.support import lazy

memory_trace = lazy.Module("dsnb.prediction.memory_trace")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Trace nothing, and return a list of the keys that would have been traced."""
    found = []

    def trace(group):
        found.extend(group)
        return {key: json.loads(json.dumps(RECORD)) for key in group}

    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    monkeypatch.setattr(traces, "_records", {})
    monkeypatch.setattr(traces, "_trace", trace)
    return found


def test_tracing_is_announced_before_it_begins_and_reading_is_not(made, caplog):
    caplog.set_level("INFO")
    for _ in range(2):
        traces.traces([given(), given(compile="default")])
    assert caplog.messages == ["tracing opt-1.3b for 2 settings, some seconds each; the result is kept"]


def test_what_the_engine_alone_decides_shares_a_trace(made):
    same = [given(zero_stage=stage, gpus=2, grad_accum=2) for stage in range(4)]
    assert traces.traces(same) == [TRACE] * 4
    assert len(made) == 1
    traces.traces([*same, given(seq_len=64), given(precision="fp32"), given(mixed_precision="autocast")])
    assert len(made) == 4
    traces.traces([given(compile="default", zero_stage=stage, gpus=2) for stage in range(4)])
    assert len(made) == 6  # whole, and block by block at ZeRO 3


def test_a_trace_serves_all_micro_batches_unless_the_loss_is_computed_in_chunks(made):
    large, small = traces.traces([given(micro_batch_size=16), given(micro_batch_size=8)])
    assert (len(made), small, large.kept) == (1, TRACE, 2 * TRACE.kept)
    traces.traces([given(micro_batch_size=size, loss="chunked") for size in (8, 16)])
    assert len(made) == 3


def test_a_trace_is_kept_for_other_processes_and_made_again_where_it_cannot_be_read(made, tmp_path, monkeypatch):
    traces.traces([given()])
    monkeypatch.setattr(traces, "_records", {})
    assert traces.traces([given()]) == [TRACE]
    assert len(made) == 1
    (file,) = (tmp_path / "traces").iterdir()
    for nonsense in ("", "[]", "{}", '{"moments": 3}'):
        file.write_text(nonsense)
        monkeypatch.setattr(traces, "_records", {})
        assert traces.traces([given()]) == [TRACE]
    assert len(made) == 5


def test_another_configuration_of_a_local_model_is_another_trace(made, tmp_path):
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    for layers in (2, 3):
        config.write_text(json.dumps({"model_type": "gpt2", "n_layer": layers, "n_head": 2, "n_embd": 8}))
        traces.traces([given(model=str(config.parent))])
    assert len(made) == 2


def test_a_setting_that_cannot_be_traced_does_not_cost_the_others(made, monkeypatch):
    def trace(group):
        return {key: {"error": "no"} if one.seq_len == 7 else RECORD for key, one in group.items()}

    monkeypatch.setattr(traces, "_trace", trace)
    odd, even = traces.attempts([given(seq_len=7), given(seq_len=8)])
    assert (str(odd), even) == ("no", TRACE)
    with pytest.raises(SettingsError, match="no"):
        traces.traces([given(seq_len=8), given(seq_len=7)])


@pytest.fixture
def answer(monkeypatch):
    """Return a function that sets what the tracing process prints, given what it reads."""
    monkeypatch.setattr(traces, "_records", {})
    monkeypatch.setenv("DSNB_CACHE", "off")

    def set_answer(of_input, stderr=""):
        def run(_, input, **__):
            return SimpleNamespace(stdout=of_input(json.loads(input)), stderr=stderr)

        monkeypatch.setattr("subprocess.run", run)

    return set_answer


def test_a_model_that_cannot_be_traced_is_one_sentence(tmp_path, monkeypatch, capsys, answer):
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2", "n_embd": 7, "n_head": 3}')  # heads do not divide the width
    settings = given(model=str(config)).model_dump(mode="json")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({"key": settings})))
    memory_trace.main()
    # DeepSpeed logs what it finds when it is imported.
    record = json.loads(capsys.readouterr().out.splitlines()[-1])["key"]
    answer(lambda asked: json.dumps(dict.fromkeys(asked, record)))
    with pytest.raises(SettingsError) as caught:
        traces.traces([given(model=str(config))])
    assert str(caught.value).startswith(f"model '{config}' could not be traced: ")
    assert "\n" not in str(caught.value)
    answer(lambda asked: "", stderr="a\nout of memory\n")
    with pytest.raises(SettingsError, match="the model could not be traced: out of memory"):
        traces.traces([given(model=str(config))])


def test_a_model_that_ranks_share_is_traced_whole(answer):
    """A process that traces is no rank, so a model that is split among ranks could not be built in it."""
    sent = []

    def record_of(asked):
        sent.extend(asked.values())
        return json.dumps(dict.fromkeys(asked, RECORD))

    answer(record_of)
    shared = {"model": "opt-tiny", "zero_stage": 1, "gpus": 4}
    traces.traces([given(**shared, tensor_parallel=2), given(**shared, pipeline_parallel=2, precision="fp32")])
    assert [(one["tensor_parallel"], one["pipeline_parallel"]) for one in sent] == [(1, 1)] * 2
