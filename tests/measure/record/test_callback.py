"""The callback, called as transformers' Trainer calls it."""

import time
from types import SimpleNamespace

from dsnb.base.files import json_files
from tests.support import lazy

torch = lazy.Module("torch")
callbacks = lazy.Module("dsnb.measure.record.callback")
EVALUATION_S = 0.2
ARGUMENTS = {
    "train_batch_size": 2, "n_gpu": 1, "gradient_accumulation_steps": 1, "learning_rate": 1e-3,
    "max_grad_norm": 1.0, "seed": 3,
}  # fmt: skip


class Training:
    """A training that goes on after step 4."""

    def __init__(self, callback):
        self.callback = callback
        self.state = SimpleNamespace(global_step=4, max_steps=10, train_batch_size=2)
        self.model = torch.nn.Embedding(16, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def tell(self, event, **more):
        given = {"model": self.model, "optimizer": self.optimizer, **more}
        getattr(self.callback, event)(SimpleNamespace(**ARGUMENTS), self.state, None, **given)

    def run(self, until=10, evaluated=None, bad=None):
        self.tell("on_train_begin")
        while self.state.global_step < until:
            self.model(torch.ones(2, 8, dtype=torch.long)).sum()
            self.state.global_step += 1
            step = self.state.global_step
            self.tell("on_step_end")
            norm = float("nan") if step == bad else 0.5
            self.tell("on_log", logs={"loss": float(step), "grad_norm": norm})
            if step == evaluated:
                time.sleep(EVALUATION_S)
                self.tell("on_evaluate", metrics={})
                time.sleep(EVALUATION_S)
                self.tell("on_save")


def record_of(folder):
    names = ("experiment.json", "result.json")
    settings, result = (json_files.read_json(folder / name) for name in names)
    return settings, result, json_files.read_lines(folder / "steps.jsonl")


def test_a_resumed_training_counts_from_one_and_says_where_it_began(tmp_path):
    training = Training(callbacks.TrainerCallback(tmp_path / "run1", warmup_steps=2))
    training.run(evaluated=8)
    training.tell("on_train_end")
    settings, result, rows = record_of(tmp_path / "run1")
    assert (settings["first_step"], settings["steps"], result["status"]) == (5, 4, "ok")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]  # logged after its step
    assert max(row["step_time_s"] for row in rows) < EVALUATION_S
    expected = {"seed": 3, "gradient_clipping": 1.0, "learning_rate": 1e-3, "optimizer": "adamw"}
    assert {name: settings[name] for name in expected} == expected


def test_a_gradient_norm_tells_what_the_filter_of_the_loss_hides(tmp_path):
    training = Training(callbacks.TrainerCallback(tmp_path / "run1", warmup_steps=2))
    training.run(bad=7)
    training.tell("on_train_end")
    _, result, _ = record_of(tmp_path / "run1")
    assert result["status"] == "nan"
    assert result["cause"] == "the loss was not a finite number at step 3"


def test_each_training_of_one_callback_has_a_folder(tmp_path):
    """As with a batch that does not fit: the Trainer begins again with a smaller one."""
    callback = callbacks.TrainerCallback(tmp_path / "run1", warmup_steps=1)
    Training(callback).run(until=6)
    second = Training(callback)
    second.run()
    second.tell("on_train_end")
    _, first, _ = record_of(tmp_path / "run1")
    assert first["status"] == "failed"
    assert first["cause"].endswith("another training began with the same callback")
    assert record_of(tmp_path / "run2")[1]["status"] == "ok"


def test_the_program_is_the_package_of_the_arguments(monkeypatch):
    import transformers

    versions = {"transformers": "5.0", "trl": "1.2"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    monkeypatch.setattr("importlib.metadata.PackageNotFoundError", KeyError)
    args = transformers.TrainingArguments
    of_trl = type("SFTConfig", (args,), {"__module__": "trl.trainer.sft_config"})
    own = type("Mine", (of_trl,), {"__module__": "__main__"})
    for kind, program in (
        (args, "transformers Trainer 5.0"),
        (of_trl, "trl 1.2"),
        (own, "trl 1.2"),
    ):
        assert callbacks.program_of(kind.__new__(kind)) == program
