"""What predictions and recommendations refuse: the whole sentence, and neighbours that are accepted."""

import json
import math

import pandas as pd
import pytest

import dsnb
from dsnb import Experiment
from dsnb.base.errors import SettingsError
from dsnb.base.formulas import planning
from dsnb.base.system import hardware
from dsnb.prediction import gpus, host_memory, recommend, shapes, step_time, traces
from dsnb.prediction.gpus import Link
from dsnb.prediction.predicted import allowed
from dsnb.prediction.target import Budget, Target
from dsnb.results.answers.answer import Answer
from dsnb.show.form.recommend import only_task
from tests.support.refusals import message_of

TINY = Experiment(model="opt-tiny", device="cuda")
FORMS_OF_LINKS = "use nvlink, pcie, ib:400 (Gbit/s for each GPU), ib:100/node, or eth:10/node (Ethernet without RDMA)"
FINITE = "give a finite number of 0 or more"


def refusal(call):
    return message_of(call, SettingsError)


@pytest.mark.parametrize("tokens", [0, -1.0, math.nan, math.inf, True, "300B", None])
def test_tokens_are_a_finite_number_above_0(tokens):
    message = f"tokens is {tokens!r}: give a finite number of more than 0"
    assert refusal(lambda: planning.check(tokens, {})) == message
    assert planning.check(1e-9, {}) is None


@pytest.mark.parametrize("amount", [-0.01, math.nan, math.inf, False, "2"])
def test_amounts_are_finite_numbers_of_at_least_0(amount):
    assert refusal(lambda: planning.check(1, {}, price=amount)) == f"price is {amount!r}: {FINITE}"
    assert planning.check(1, {"H200": 0}, price=None, power_w=0.0) is None


def test_all_amounts_are_refused_at_once_and_tokens_first():
    with pytest.raises(SettingsError) as caught:
        planning.check(0, {"prices['A']": -1, "prices['B']": 1}, power_w="x")
    assert caught.value.problems == [
        "tokens is 0: give a finite number of more than 0",
        f"prices['A'] is -1: {FINITE}",
        f"power_w is 'x': {FINITE}",
    ]


def test_budgets():
    words = "objective is 'speed': use one of days, tokens_per_s, memory, cost"
    assert refusal(lambda: Budget(objective="speed")) == words
    words = "objective is 'cost', but price is missing or 0: give the price of a GPU-hour"
    for price in (None, 0, 0.0):
        assert refusal(lambda price=price: Budget(objective="cost", price=price)) == words
    assert Budget(objective="cost", price=0.01).price == 0.01
    assert Budget(objective="memory", price=0).price == 0
    words = "tokens is 0: give a finite number of more than 0"
    assert refusal(lambda: Budget(tokens=0)) == words
    assert refusal(lambda: Budget(price=-2)) == f"price is -2: {FINITE}"


def test_predict_checks_tokens_and_prices_first():
    words = "tokens is -1: give a finite number of more than 0"
    assert refusal(lambda: dsnb.predict([TINY], "H20", tokens=-1)) == words
    assert refusal(lambda: dsnb.predict([TINY], "H20", price=-1)) == f"price is -1: {FINITE}"


def test_unknown_gpus():
    other = "`dsnb recommend --list` prints all; for another one, give a CSV file of its data sheet"
    words = f"unknown GPU 'Z9': {other}"
    assert refusal(lambda: gpus.find("Z9")) == words
    assert refusal(lambda: dsnb.predict([TINY], "Z9")) == words
    near = refusal(lambda: gpus.find("H201"))
    assert near == f"unknown GPU 'H201': the nearest are H20, H200, H20-141GB, GH200; {other}"
    assert gpus.find("NVIDIA H200").name == "H200"


@pytest.mark.parametrize("text", ["", "ib", "ib:", "ib:0", "ib:-1", "ib:1/gpu", "nvlink4", "PCIE"])
def test_links(text):
    assert refusal(lambda: gpus.link(text)) == f"link is {text!r}: {FORMS_OF_LINKS}"


def test_links_of_one_gpu_and_of_a_node_of_8():
    assert gpus.link("ib:400").network_gb_per_s == 50
    assert [gpus.link("ib:400/node").of_gpu_gb_per_s(node_gpus) for node_gpus in (2, 8)] == [
        25,
        50 / 8,
    ]
    assert gpus.link("ib:0.5").network_gb_per_s == 0.5 / 8
    assert not gpus.link("pcie").nvlink


def test_several_nodes_need_a_network():
    words = "gpus is 16, on 2 nodes: say how these are connected, such as ib:400 (Gbit/s a GPU)"
    assert refusal(lambda: Link().check(16, 2)) == words
    sixteen = TINY.model_copy(update={"gpus": 16})
    assert refusal(lambda: dsnb.predict([sixteen], "H200")) == words
    nine = TINY.model_copy(update={"gpus": 9})
    assert refusal(lambda: step_time.check(nine, Link())).startswith("gpus is 9, on 2 nodes: ")
    assert Link().check(8, 1) is None
    assert Link(network_gb_per_s=1).check(16, 2) is None


def test_products_in_fp8_need_a_gpu_that_has_them():
    fp8 = TINY.model_copy(update={"matmul": "fp8"})
    words = "matmul is 'fp8': A100 has no such products by its data sheet; use 'auto'"
    assert refusal(lambda: dsnb.predict([fp8], "A100")) == words
    assert step_time.problem(fp8, "H200", "nvlink") == ""


@pytest.mark.parametrize("given", [0, -1.0, math.inf, math.nan])
def test_host_memory(given):
    words = f"host_memory is {given!r}: give the GiB of one host, such as 512"
    assert refusal(lambda: host_memory.known_gib(gpus.find("H200"), given)) == words
    assert host_memory.known_gib(gpus.find("H200"), 0.5) == 0.5


def test_a_file_of_gpus(tmp_path, monkeypatch):
    """Two faults of one file; without them, the GPU is known."""
    file = tmp_path / "gpus.csv"
    monkeypatch.setenv("DSNB_GPUS", str(file))
    gpus.known.cache_clear()
    words = f"{file} cannot be read: [Errno 2] No such file or directory: '{file}'; it lists GPUs"
    try:
        assert refusal(gpus.known) == words
        file.write_text("name,memory_gib\nX1,80\n,80\n")
        gpus.known.cache_clear()
        problem = refusal(gpus.known)
        assert problem.startswith(f"{file}, line 2: ")
        assert problem.endswith(" is '': give the value of its data sheet")
    finally:
        monkeypatch.delenv("DSNB_GPUS")
        gpus.known.cache_clear()


def test_calibrating_needs_runs():
    words = "no run to calibrate with: give successful runs on known GPUs"
    assert refusal(lambda: dsnb.predict([TINY], "H200", calibrate=pd.DataFrame())) == words


def test_models_that_are_not_on_this_machine():
    words = (
        "model is 'owner/name': a prediction needs a preset or a configuration file on this machine"
    )
    assert refusal(lambda: shapes.shape("owner/name")) == words


@pytest.mark.parametrize(
    ("lacking", "named"), [("vocab_size", "vocab"), ("n_layer", "layers"), ("n_head", "heads")]
)
def test_shapes_that_a_configuration_lacks(tmp_path, lacking, named):
    sizes = {"n_positions": 8, "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}
    del sizes[lacking]
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", **sizes}))
    words = f"cannot read the shape of a gpt2 model from {file}: it has no {named}"
    assert refusal(lambda: shapes.shape(str(file))) == words


def test_tracing_needs_torch(monkeypatch):
    monkeypatch.setattr(traces, "can_trace", lambda: False)
    words = (
        "torch or transformers is missing: a model is traced with them; pip install 'dsnb[train]'"
    )
    assert refusal(lambda: traces._make("memory", {"key": TINY})) == words


def test_settings_of_which_none_is_valid():
    assert refusal(lambda: allowed([])) == (
        "no combination of settings is left: give each one a value"
    )
    wrong = {"zero_stage": 3, "pad_vocab": 64}
    words = (
        "pad_vocab is 64, but zero_stage is 3: weights are partitioned as built; use ZeRO 0 to 2"
    )
    assert refusal(lambda: allowed([wrong, wrong])) == words
    accepted, refused = allowed([wrong, {"zero_stage": 2}])
    assert ([one.zero_stage for one in accepted], refused) == ([2], [words])


def test_settings_of_which_none_can_be_predicted():
    fp8 = TINY.model_copy(update={"matmul": "fp8"})
    words = "matmul is 'fp8': A100 has no such products by its data sheet; use 'auto'"
    target = Target("A100")
    assert refusal(lambda: target.predictable([fp8, fp8])) == words
    assert target.predictable([fp8, TINY]) == [TINY]


def test_a_recommendation_needs_settings():
    words = "there is no setting to choose from: give at least one"
    assert refusal(lambda: dsnb.recommend([], "H200")) == words


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
@pytest.mark.parametrize("name", ["gpus", "seq_len", "global_batch"])
def test_sizes_of_a_recommendation(name, value):
    words = f"{name} is {value!r}: give a whole number of at least 1"
    assert refusal(lambda: dsnb.recommend("opt-125m", "H200", **{name: value})) == words


def test_a_batch_that_cannot_be_shared(monkeypatch):
    words = (
        "global_batch is 12: it cannot be shared equally among 8 GPUs; "
        "give a multiple of 8, such as 16"
    )
    assert refusal(lambda: dsnb.recommend("mixtral-8x7b", "H200", gpus=8, global_batch=12)) == words
    words = "no power of two of GPUs shares 1 sequence a step and fits: give another global_batch"
    monkeypatch.setattr(recommend, "smallest", lambda training, target: None)
    asked = {"global_batch": 1, "least_gpus": True}
    assert refusal(lambda: dsnb.recommend("opt-125m", "H200", **asked)) == words


def test_arguments_of_a_recommendation_that_do_not_apply(tmp_path):
    words = "gpus is 4: it applies to models and files; change the experiments of the list"
    assert refusal(lambda: dsnb.recommend([TINY], "H200", gpus=4)) == words
    words = "seq_len is 4: it applies to models and files; change the experiments of the list"
    assert refusal(lambda: dsnb.recommend([TINY], "H200", seq_len=4)) == words
    file = tmp_path / "a.yaml"
    file.write_text("name: a\ndefaults: {model: opt-tiny}\n")
    words = "global_batch is 4: it applies to models; a params file has its own settings"
    assert refusal(lambda: dsnb.recommend(file, "H200", global_batch=4)) == words


def test_measuring(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", lambda: ())
    words = "device is 'cpu', but speeds are predicted for GPUs: leave it out, or give measure"
    assert refusal(lambda: dsnb.recommend("opt-tiny", settings={"device": "cpu"})) == words
    words = "objective is 'memory', but CPU ranks are measured here: use days or tokens_per_s"
    assert refusal(lambda: dsnb.recommend("opt-tiny", measure=1, objective="memory")) == words
    words = "gpu is 'H100', but runs are measured on this machine, which has no GPU: leave it out"
    assert refusal(lambda: dsnb.recommend("opt-tiny", "H100", measure=1)) == words
    for number in (-1, 1.5, "3"):
        words = f"measure is {number!r}: give the number of settings to run, such as 3"
        assert refusal(lambda n=number: dsnb.recommend("opt-tiny", measure=n)) == words


def test_hosts_that_hold_no_rank(monkeypatch):
    monkeypatch.setattr(hardware, "available_memory_gib", lambda: 0.01)
    monkeypatch.setattr(recommend, "need_gib", lambda one, likely: 2.0)
    two = TINY.model_copy(update={"gpus": 2, "device": "cpu"})
    words = (
        "opt-tiny needs at least 4 GiB of host memory on 2 CPU ranks (by zs0_bf16_gpus2_bs8_sl128), "
        "and this machine has 0.01 GiB free: measure a smaller model, or predict without measure"
    )
    assert refusal(lambda: recommend.held_by_host([two])) == words
    monkeypatch.setattr(hardware, "available_memory_gib", lambda: 4.0)
    assert recommend.held_by_host([two]) == [two]


def test_several_tasks():
    found = [Answer(f"{model}, sequences of 128", pd.DataFrame(), ()) for model in ("A", "B")]
    words = (
        "measure is for one task, but there are 2 (A, sequences of 128; B, sequences of 128): "
        "ask for one at a time"
    )
    assert refusal(lambda: only_task(found, "measure")) == words
    assert only_task(found[:1], "measure") is found[0]
