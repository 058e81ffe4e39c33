"""What a user states about runs whose log does not say it."""

import pytest

import dsnb
from dsnb.base.errors import SettingsError
from tests.support.difficult_logs import LOGS


@pytest.fixture
def logs(tmp_path):
    for name in ("gpus_not_logged", "eight_gpus", "torchtitan", "megatron_swiglu", "no_bars"):
        (tmp_path / f"{name}.log").write_text(LOGS[name])
    return tmp_path


def stated(path, **settings):
    return dsnb.load_runs(path, settings=settings).iloc[0]


def refused(path, **settings):
    with pytest.raises(SettingsError) as caught:
        dsnb.load_runs(path, settings=settings)
    return str(caught.value)


def test_figures_follow_from_what_is_stated(logs):
    row = stated(logs / "torchtitan.log", gpus=8, model="llama-3.1-8b", seq_len=8192)
    assert (row["gpus"], row["model"], row["tokens_per_s"]) == (8, "llama-3.1-8b", 80_000.0)
    assert row["parameters"] == 8_030_261_248
    assert row["provenance"].endswith("stated: gpus, model, seq_len")
    row = stated(logs / "gpus_not_logged.log", gpus=16)
    assert row["tokens_per_s_per_gpu"] == 216.0 * 512 / 16


def test_what_the_log_says_too_is_no_contradiction(logs):
    row = stated(logs / "eight_gpus.log", gpus=8, model="facebook/opt-350m")
    assert (row["gpus"], row["model"]) == (8, "opt-350m")


def test_a_name_on_the_hub_means_its_preset(tmp_path):
    path = tmp_path / "a.log"
    path.write_text(LOGS["eight_gpus"].replace("facebook/opt-350m", "meta-llama/Llama-3.1-8B"))
    row = stated(path)
    assert (row["model"], row["parameters"]) == ("Llama-3.1-8B", 8_030_261_248)
    assert stated(path, model="llama-3.1-8b")["model"] == "Llama-3.1-8B"
    path.write_text(LOGS["eight_gpus"].replace("facebook/opt-350m", "me/mine"))
    assert stated(path, model="llama-3.1-8b")["model"] == "llama-3.1-8b"


def test_a_contradiction_is_an_error(logs):
    path = logs / "eight_gpus.log"
    sentence = "but 4 is stated: leave gpus out, or name the runs that it holds for"
    assert refused(path, gpus=4) == f"{path} says that gpus is 8, {sentence}"
    assert refused(logs, gpus=4) == f"{path} says that gpus is 8, {sentence}"  # not a warning
    assert "says that model is 'opt-350m'" in refused(path, model="gpt2")
    path = logs / "no_bars.log"
    assert "says that gpus is 4, but 8 is stated" in refused(path, gpus=8)  # 64 = 8 x 2 x 4


def test_a_model_of_other_sizes_is_an_error(logs):
    path = logs / "megatron_swiglu.log"
    assert stated(path, model="llama-3.1-8b")["model"] == "llama-3.1-8b"
    assert refused(path, model="llama-3.1-70b") == (
        f"{path} says that the model has 32 as layers, but llama-3.1-70b has 80: state another model"
    )


def test_parts_of_a_batch_must_fit(tmp_path):
    (tmp_path / "a.log").write_text(LOGS["veomni"])  # a batch of 32
    assert "micro_batch_size x grad_accum x data_parallel is 4 x 2 x 8" in refused(
        tmp_path, micro_batch_size=4, grad_accum=2, gpus=8, tensor_parallel=1, pipeline_parallel=1
    )


def test_names_and_values_are_checked(logs):
    assert refused(logs, gpu=8) == "unknown setting 'gpu': did you mean 'gpus'?"
    assert refused(logs, gpus="x") == "gpus is 'x': give a plain number, without a unit"
    assert refused(logs, precision="bfloat").startswith("precision is 'bfloat': allowed are")


def test_runs_of_dsnb_know_their_settings():
    first = dsnb.load_runs("outputs/examples/quickstart").iloc[0]
    example = first["run_dir"]
    gpus = int(first["gpus"])
    assert len(dsnb.load_runs(example, settings={"gpus": gpus})) == 1
    assert f"says that gpus is {gpus}, but {gpus + 1} is stated" in refused(example, gpus=gpus + 1)
