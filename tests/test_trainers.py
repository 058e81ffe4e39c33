"""The table of other trainers, and which runs are left, on results by hand."""

import pytest

from benchmarks import trainers
from benchmarks.trainers import Records, Run
from tests.support import lazy

torch, transformers = lazy.Module("torch"), lazy.Module("transformers")
gpt2_loop = lazy.Module("benchmarks.gpt2_loop")

FIELDS = {"repeat": 1, "micro_batch_size": 8, "grad_accum": 2, "device": "cuda"}
WHERE = {"gpu": "H100", "date": "2026-11-28", "versions": {"torch": "2.11"}}


def record(way, status="ok", **others):
    figures = {"tokens_per_s": 1000.0, "peak_allocated_gib": 10.0, "loss_first": 2, "loss_mean": 1}
    of_status = figures if status == "ok" else {}
    run = {"name": "llama-3.2-1b", "way": way, "status": status}
    return {**run, **FIELDS, **WHERE, **of_status, "wall_s": 1.0, **others}


def test_cells_are_medians_of_the_largest_micro_batch_that_fits():
    records = [
        record("dsnb", tokens_per_s=3000, settings="plain"),
        record("dsnb", repeat=2, tokens_per_s=4000, peak_allocated_gib=11.0, settings="plain"),
        record("dsnb", repeat=3, tokens_per_s=8000, settings="plain"),
        record("trainer", "oom"),
        record("trainer", micro_batch_size=4, grad_accum=4),
        record("compile", "oom"),
        record("zero2", "timeout"),
    ]
    assert trainers.speed_table(records) == [
        "| way | Llama 3.2 1B, 8 x 2048, 2 accumulated |",
        "|---|---|",
        "| dsnb's recommendation | 4,000 (11.0 GiB) |",
        "| Trainer | 1,000 (10.0 GiB), 4 x 2048 |",
        "| Trainer, `torch_compile` | out of memory |",
        "| Trainer, DeepSpeed ZeRO 2, `auto` | timeout |",
        "",
        "H100, 2026-11-28; torch 2.11. Medians of 1 to 3 runs each; peaks of allocated memory.",
        "Recommended settings: Llama 3.2 1B: `plain`.",
    ]
    assert trainers.loss_table(records)[2:] == [
        "| dsnb's recommendation | 2.000, 1.000 |",
        "| Trainer | 2.000, 1.000 |",
    ]


def test_kinds_of_gpus_are_not_mixed():
    other = record("trainer", tokens_per_s=5000.0, gpu="H200")
    table = trainers.speed_table([record("trainer"), other])
    assert [row for row in table if row.startswith("| Trainer")] == [
        "| Trainer | 1,000 (10.0 GiB) |",
        "| Trainer | 5,000 (10.0 GiB) |",
    ]


def test_the_most_important_runs_come_first():
    labels = [run.label for run in trainers.planned(["olmo2-1b", "gpt2"], "cuda")]
    first = ("trainer", "compile", "liger", "zero2", "dsnb", "adapt", "written")
    assert labels[:8] == [*(f"olmo2-1b/{way}/1" for way in first), "gpt2/trainer/1"]
    assert len(set(labels)) == len(labels) == trainers.REPEATS * (10 + 9)
    assert [label for label in labels if label.startswith("gpt2/liger")] == []
    assert labels.index("gpt2/zero3/1") < labels.index("olmo2-1b/trainer/2")


@pytest.fixture
def made(monkeypatch):
    """Runs that were made; those of micro-batch 8 run out of memory."""
    runs = []

    def make(run, limit_s, log):
        runs.append((run.repeat, run.micro_batch_size, run.grad_accum))
        return record(run.way, "oom" if run.micro_batch_size == 8 else "ok")

    monkeypatch.setattr(trainers, "make", lambda *what: {**make(*what), **what[0].fields()})
    return runs


def test_a_run_out_of_memory_is_halved_and_not_made_again(made, tmp_path):
    records = Records(tmp_path / "trainers.jsonl", "H100")
    run = Run("llama-3.2-1b", "trainer", 1, 8, 2, "cuda")
    for repeat in (1, 1, 2):
        run = Run(run.name, run.way, repeat, 8, 2, "cuda")
        assert trainers.make_until_it_fits(run, records, float("inf"))
    assert made == [(1, 8, 2), (1, 4, 4), (2, 4, 4)]
    later = Records(records.path, "H100")
    later.read(records.path)
    assert later.known == records.known
    other = Records(records.path, "H200")
    other.read(records.path)
    assert other.known == []


def test_no_run_is_started_without_time(made, tmp_path):
    records = Records(tmp_path / "trainers.jsonl", "H100")
    run = Run("llama-3.2-1b", "trainer", 1, 8, 2, "cuda")
    assert not trainers.make_until_it_fits(run, records, 0.0)
    assert made == []


@pytest.mark.parametrize(
    ("name", "way", "ranks"),
    [
        ("gpt2", "trainer", [None]),
        ("gpt2", "zero2", ["0"]),  # DeepSpeed asks for a rank even if it is alone
        ("llama-3.1-8b", "zero3", ["0", "1", "2", "3"]),
        ("llama-3.1-8b", "dsnb", [None]),  # its launcher starts the ranks
    ],
)
def test_each_rank_has_its_environment(name, way, ranks):
    variables = trainers.environments(Run(name, way, 1, 8, 2, "cuda"))
    assert [one.get("RANK") for one in variables] == ranks
    assert len({one.get("MASTER_PORT") for one in variables}) == 1


def test_the_suffix_of_an_architecture_is_left_out(monkeypatch):
    """DeepSpeed's op builder fails on it."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    (variables,) = trainers.environments(Run("gpt2", "zero1", 1, 8, 2, "cuda"))
    assert variables["TORCH_CUDA_ARCH_LIST"] == "9.0"


def test_the_recommended_settings_are_those_of_the_tasks():
    for name in trainers.TASKS.keys() - set(trainers.TINY):
        task = trainers.TASKS[name]
        shape = ("model", "micro_batch_size", "grad_accum", "seq_len", "gpus")
        settings = trainers.recommended(task.model)
        assert [settings[key] for key in shape] == [getattr(task, key) for key in shape]
        assert settings["gradient_clipping"] == trainers.CLIPPING


def test_gpt2_by_hand_has_the_loss_and_gradients_of_transformers():
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "vocab_size": 128}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(**sizes, **drops, bos_token_id=1, eos_token_id=1)
    model = transformers.GPT2LMHeadModel(config)
    made = gpt2_loop.with_weights_of(model)
    ids = torch.randint(128, (2, 16))
    expected = model(input_ids=ids, labels=ids).loss
    loss = made(ids)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(made.tokens.weight.grad, model.transformer.wte.weight.grad)
    narrowed = made.blocks[1].narrowed.weight.grad
    torch.testing.assert_close(narrowed, model.transformer.h[1].mlp.c_proj.weight.grad.T)
