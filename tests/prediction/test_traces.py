"""The cache of traces: what is made once, and what is another trace."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace

import psutil
import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import traces
from dsnb.prediction.traces import MemoryTrace
from tests.prediction.made_up import RECORD, TRACE, given
from tests.support.waiting import WAIT_S

BY_BLOCK = {"compile": "default", "compile_unit": "block"}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Trace nothing, and return a list of the settings that would have been traced; a length of 7 cannot be."""
    found = []

    def ask(kind, experiment):
        found.append(experiment)
        return {"error": "no"} if experiment.seq_len == 7 else json.loads(json.dumps(RECORD))

    def start():
        return SimpleNamespace(
            ask=ask, process=SimpleNamespace(poll=lambda: None), made=set(), lent=threading.Lock()
        )

    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    monkeypatch.setattr(traces, "_records", {})
    monkeypatch.setattr(traces, "_tracers", [])
    monkeypatch.setattr(traces, "_Tracer", start)
    return found


def test_what_the_engine_alone_decides_shares_a_trace(made):
    same = [given(zero_stage=stage, gpus=2, grad_accum=2) for stage in range(4)]
    assert traces.traces(same) == [TRACE] * 4
    assert len(made) == 1
    traces.traces(
        [*same, given(seq_len=64), given(precision="fp32"), given(mixed_precision="autocast")]
    )
    assert len(made) == 4
    traces.traces([given(compile="default", zero_stage=stage, gpus=2) for stage in range(4)])
    assert len(made) == 6  # whole, and block by block at ZeRO 3
    alike = [
        given(strategy="fsdp", mixed_precision="autocast"),
        given(strategy="plain"),
        given(strategy="ddp"),
    ]
    traces.traces([given(mixed_precision="autocast"), *alike])
    assert len(made) == 6
    traces.traces([given(strategy="fsdp"), given(strategy="plain", precision="fp32")])
    assert len(made) == 6


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, 1),
        ({"lora_rank": 4}, 2),
        ({"loss": "chunked"}, 1),
        (BY_BLOCK, 1),
        (BY_BLOCK | {"loss": "chunked"}, 2),
    ],
)
def test_trained_weights_in_fp32_are_seen_in_adapters_and_in_the_gradient_of_a_chunked_loss(
    made, settings, number
):
    traces.traces([given(strategy=name, **settings) for name in ("deepspeed", "fsdp")])
    assert len(made) == number


def test_fp16_shares_the_trace_of_bf16_if_a_model_is_known_to_compute_alike(made, tmp_path):
    traces.traces([given(precision="bf16"), given(precision="fp16")])
    assert [one.precision for one in made] == ["bf16"]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PRESETS["gpt2"].config()))
    for model in ("mixtral-8x7b", str(config)):  # has experts, is not known to have none
        made.clear()
        traces.traces(
            [given(model=model, precision=name, seq_len=1024) for name in ("bf16", "fp16")]
        )
        assert len(made) == 2


def test_a_trace_serves_all_micro_batches_whose_loss_has_chunks_as_large(made):
    large, small = traces.traces([given(micro_batch_size=16), given(micro_batch_size=8)])
    assert (len(made), small, large.kept) == (1, TRACE, 2 * TRACE.kept)
    traces.traces([given(micro_batch_size=size, loss="chunked") for size in (8, 16)])
    assert len(made) == 2
    sizes = (1, 2, 4, 8)  # chunks of 512, 1024 and 2048 tokens
    traces.traces([given(micro_batch_size=n, seq_len=512, loss="chunked") for n in sizes])
    assert [one.micro_batch_size for one in made[2:]] == [1, 2, 4]


def test_a_trace_is_kept_for_other_processes_and_made_again_where_it_cannot_be_read(
    made, tmp_path, monkeypatch, caplog
):
    caplog.set_level("INFO")
    asked = [given(), given(compile="default")]
    for _ in range(2):
        assert traces.traces(asked) == [TRACE] * 2
        monkeypatch.setattr(traces, "_records", {})
    assert len(made) == 2
    assert caplog.messages == [
        "tracing opt-1.3b for 2 kinds of settings, some seconds each; the result is kept"
    ]
    for nonsense in ("", "[]", "{}", '{"moments": 3}'):
        for file in (tmp_path / "traces").iterdir():
            file.write_text(nonsense)
        monkeypatch.setattr(traces, "_records", {})
        assert traces.traces(asked) == [TRACE] * 2
    assert len(made) == 10


def test_another_configuration_of_a_local_model_is_another_trace(made, tmp_path):
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    for layers in (2, 3):
        config.write_text(
            json.dumps({"model_type": "gpt2", "n_layer": layers, "n_head": 2, "n_embd": 8})
        )
        traces.traces([given(model=str(config.parent))])
    assert len(made) == 2


def test_other_versions_of_the_libraries_make_another_trace(made, monkeypatch):
    traces.traces([given()])
    for library in ("torch", "transformers", "peft"):
        monkeypatch.setattr(
            traces, "version", lambda name, changed=library: "9.9" if name == changed else "1.0"
        )
        for _ in range(2):
            traces._versions.cache_clear()
            traces.traces([given()])
    traces._versions.cache_clear()
    assert len(made) == 4


def test_the_moment_of_the_loss_that_is_largest_for_a_micro_batch_counts():
    """A constant size counts at one sequence, one that grows with the sequences at two."""
    sizes = [(10, 0, 0), (0, 8, 0), (5, 0, 3)]
    record = {**RECORD, "moments": sizes, "forward": [(10, 0), (0, 8)]}
    assert [MemoryTrace.of(record, size).forward_peak for size in (1, 2)] == [10, 16]
    assert MemoryTrace.of(record, 1).moments == ((10, 0), (5, 3))
    assert MemoryTrace.of(record, 2).moments == ((16, 0), (5, 3))


def test_which_blocks_are_recomputed_makes_another_trace(made):
    again = {"activation_checkpointing": True}
    ways = ({}, again, {**again, "checkpoint_every": 2}, {**again, "checkpoint_offload": True})
    traces.traces([given(**way) for way in ways])
    assert len(made) == 4


def test_another_code_of_models_makes_another_trace(made, tmp_path, monkeypatch):
    code = tmp_path / "code" / "models" / "build.py"
    code.parent.mkdir(parents=True)
    monkeypatch.setattr(traces.paths, "PACKAGE", tmp_path / "code")
    for text in ("width = 1", "width = 2"):
        code.write_text(text)
        traces._versions.cache_clear()
        traces.traces([given()])
    traces._versions.cache_clear()
    assert len(made) == 2


def test_a_setting_that_cannot_be_traced_does_not_cost_the_others(made):
    odd, even = traces.attempts([given(seq_len=7), given(seq_len=8)])
    assert (str(odd), even) == ("no", TRACE)
    with pytest.raises(SettingsError, match="no"):
        traces.traces([given(seq_len=8), given(seq_len=7)])


def test_processes_start_early_once_for_each_model(made):
    for model, number in (("no-model", 0), ("gpt2", 2), ("gpt2", 0), ("opt-1.3b", 2)):
        traces.start(model)
        assert len(traces._tracers) == number
        traces._tracers.clear()


def test_the_process_that_has_made_a_graph_is_waited_for(made):
    def lent(graph):
        with traces._lent_tracer(graph) as tracer:
            return tracer

    first = lent("graph")
    busy = traces._lent_tracer("other")
    assert busy.__enter__() is first
    assert lent("third") is not first
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lent, "graph")
        assert not wait([waiting], timeout=0.1).done
        busy.__exit__(None, None, None)
        assert waiting.result(timeout=WAIT_S) is first


def cpu_s_to_end(process):
    """Return the CPU time that a process spends after its input is closed; imports take more than 4 s."""
    before = psutil.Process(process.pid).cpu_times()
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime - before.user - before.system


@pytest.mark.process
def test_a_process_answers_until_nobody_asks(tmp_path, monkeypatch):
    """A model that cannot be traced is one sentence, ranks share a whole model, and one that died is told."""
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "gpt2", "n_embd": 7, "n_head": 3}'
    )  # heads do not divide the width
    monkeypatch.setattr(traces, "_records", {})
    monkeypatch.setattr(traces, "_tracers", [])
    monkeypatch.setattr(traces, "WORKERS", 1)
    monkeypatch.setenv("DSNB_CACHE", "off")
    settings = {"seq_len": 32, "precision": "fp32", "gpus": 2, "zero_stage": 1}
    odd, split = traces.attempts(
        [
            given(model=str(config), **settings),
            given(model="gpt2-tiny", tensor_parallel=2, **settings),
        ]
    )
    assert str(odd).startswith(f"model '{config}' could not be traced: ")
    assert "(got `embed_dim`: 7 and `num_heads`: 3)" in str(odd)
    assert "\n" not in str(odd)
    assert split.parameters == PRESETS["gpt2-tiny"].parameters
    for tracer in (
        *traces._tracers,
        traces._Tracer(),
    ):  # one that waits, and one that would first load torch
        assert cpu_s_to_end(tracer.process) < 2


@pytest.mark.process
def test_a_process_that_dies_says_why(monkeypatch):
    monkeypatch.setattr(
        traces.interpreter, "command", lambda *_: ["sh", "-c", "echo out of memory >&2"]
    )
    tracer = traces._Tracer()
    tracer.process.wait(timeout=WAIT_S)
    assert tracer.ask("memory", given()) == {
        "error": "the model could not be traced: out of memory"
    }


@pytest.mark.process
def test_a_process_that_ended_before_it_was_asked_is_replaced(monkeypatch):
    scripts = iter(["exit 0", "read question; echo '{\"parameters\": 7}'"])
    monkeypatch.setattr(traces.interpreter, "command", lambda *_: ["sh", "-c", next(scripts)])
    tracer = traces._Tracer()
    tracer.process.wait(timeout=WAIT_S)
    assert tracer.ask("memory", given()) == {"parameters": 7}
