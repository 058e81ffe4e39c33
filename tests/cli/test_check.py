"""`dsnb check`: a stated speed, a log, and what is asked for where one of them says too little."""

from tests.cli.test_app import dsnb

LOG = """\
{'loss': 2.0, 'learning_rate': 1e-4, 'epoch': 0.1}
[2024-01-01 00:00:00,000] [WARNING] [stage3.py:1939:step] 2 pytorch allocator cache flushes since last step. this
{'train_runtime': 100.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': 0.5, 'epoch': 1.0}
"""
STATED = ("--gpu", "A100", "--gpus", "8")
TRAINED = ("--set", "model=llama-2-7b", "--set", "seq_len=2048")


def test_a_stated_speed_is_judged(monkeypatch):
    words = ("--tokens-per-s", "3700", "--per-gpu", "--mfu", "15", "--set", "strategy=hsdp")
    code, out, err = dsnb(monkeypatch, "check", "llama-2-7b", *STATED, *words)
    first, second, third, *others = out.splitlines()
    assert (code, err) == (0, "")
    assert first.startswith("llama-2-7b, 8 GPUs A100, ")
    assert ": 29,600 tokens/s, 3,700 a GPU, MFU " in first
    assert second.startswith("normal: within ")
    assert third.startswith("nearest run, measured by ")
    assert any("one shard" in line for line in others)


def test_a_log_is_judged_with_the_signs_in_it(monkeypatch, tmp_path):
    log = tmp_path / "training.log"
    log.write_text(LOG)
    code, out, err = dsnb(monkeypatch, "check", log, *STATED, *TRAINED)
    assert (code, err) == (0, "")
    assert ": 16,400 tokens/s, 2,050 a GPU" in out  # 8 sequences of 2,048
    assert "torch's allocator returned memory and asked again (2 times)" in out


def test_what_is_unknown_is_asked_for(monkeypatch, tmp_path):
    log = tmp_path / "training.log"
    log.write_text(LOG)
    asked = {
        ("gpt2",): "the GPU is unknown: say --gpu NAME",
        ("gpt2", "--gpu", "H100"): "no speed is given",
        ("gpt2", "--gpu", "H1000", "--step-s", "1"): "unknown GPU 'H1000'",
        ("gpt2", *STATED, "--mfu", "40", "--set", "batch=2"): "unknown setting 'batch'",
        ("gpt2", *STATED, "--mfu", "40", "--set", "program=axolotl"): "unknown setting 'program'",
        (log, "--gpu", "A100", *TRAINED): "the gpus of these runs is unknown: say --set gpus=VALUE",
        (log, *STATED, "--step-s", "1", *TRAINED): "say their speed; leave it out",
        ("gpt2", *STATED, "--step-s", "1", "--real-tokens", "-5"): "real tokens are -5 of all",
        ("gpt2", *STATED, "--step-s", "1", "--gpu-util", "-50"): "GPU utilization is -50 %",
        (log, *STATED): "the model of these runs is unknown: say --set model=VALUE",
    }
    for words, problem in asked.items():
        code, out, err = dsnb(monkeypatch, "check", *words)
        assert (code, out) == (1, "")
        assert problem in err, words
