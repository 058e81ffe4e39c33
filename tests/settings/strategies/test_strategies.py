"""Strategies: what each answers, with known answers by hand, and how a package adds one."""

import warnings
from dataclasses import asdict, replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from dsnb.base.errors import SettingsError
from dsnb.settings import strategies
from dsnb.settings.experiment import Experiment
from dsnb.settings.parallelism import parallelism, parallelism_order
from dsnb.settings.strategies import STRATEGIES, ModelSize, Strategy, registry, strategy
from dsnb.settings.strategies.fsdp import Fsdp

MODEL = ModelSize(parameters=1000, trained=1000, layers=2, hidden=10, family="opt")


def states(**settings):
    each = Experiment(**settings).states.of_rank
    return each.weights, each.gradients, each.optimizer, each.copies


def sent(**settings):
    """Return the bytes and messages of a step that are not 0."""
    experiment = Experiment(**settings)
    traffic = asdict(experiment.parallel_strategy.traffic(experiment, MODEL))
    return {name: number for name, number in traffic.items() if number}


def test_states_are_shared_as_the_stage_of_zero_says():
    whole, masters_and_moments = 2, 4 + 8
    assert states(gpus=4, zero_stage=0) == (whole, whole, masters_and_moments, 0)
    assert states(gpus=4, zero_stage=1) == (whole, whole, masters_and_moments / 4, 0)
    assert states(gpus=4, zero_stage=2) == (whole, whole / 4, masters_and_moments / 4, 0)
    assert states(gpus=4, zero_stage=3) == (whole / 4, whole / 4, masters_and_moments / 4, 0)
    assert states(gpus=8, zero_stage=1, tensor_parallel=2) == states(gpus=4, zero_stage=1)


def test_states_in_fp32_and_under_autocast():
    moments = 8
    assert states(precision="fp32", gpus=2, zero_stage=1) == (4, 4, moments / 2, 0)
    assert states(strategy="ddp", gpus=2) == (4, 4, moments, 2)  # with a copy by autocast
    assert states(strategy="plain") == (4, 4, moments, 2)
    assert states(strategy="fsdp", gpus=2) == (2, 2, moments / 2, 0)
    assert states(strategy="fsdp", gpus=2, mixed_precision="autocast") == (2, 2, moments / 2, 0)


def test_ddp_sends_fp32_gradients_once_a_step():
    ring = 2 * 3 / 4
    expected = {"data_messages": 1000 / (25 * 2**20 / 4) + 1, "reduction_overlaps": 1}
    assert sent(strategy="ddp", gpus=4) == {"all_reduce": 1000 * 4 * ring, **expected}
    assert sent(strategy="ddp", gpus=4, grad_accum=8) == sent(strategy="ddp", gpus=4)
    rounded = sent(strategy="ddp", gpus=4, gradient_compression="bf16", device="cuda")
    assert rounded["all_reduce"] == 1000 * 2 * ring
    assert sent(strategy="plain") == sent(strategy="ddp") == {}


def test_fsdp_gathers_weights_for_two_passes_and_scatters_gradients():
    once = 1 / 2
    of_step = {"all_gather": 2 * 1000 * 2 * once, "reduce_scatter": 1000 * 4 * once}
    overlaps = {"reduction_overlaps": 1, "gather_overlaps": 1}
    assert sent(strategy="fsdp", gpus=2) == {**of_step, "data_messages": 6, **overlaps}
    again = sent(strategy="fsdp", gpus=2, grad_accum=3)
    assert (again["all_gather"], again["reduce_scatter"]) == (3 * 2000, 3 * 2000)
    kept = sent(strategy="fsdp", gpus=2, grad_accum=3, gathered_weights="micro-batch")
    assert (kept["all_gather"], kept["data_messages"]) == (3 * 1000, 3 * 2 * 2)
    assert (
        sent(strategy="fsdp", gpus=2, grad_accum=3, reduce_gradients="step")["reduce_scatter"]
        == 2000
    )


def test_groups_with_copies_share_states_and_average_their_shares_once_a_step():
    """Of 8 ranks, 4 share 1,000 parameters; the shares of 250 are averaged between two groups."""
    groups = {"strategy": "fsdp", "gpus": 8, "shard_size": 4}
    assert states(**groups) == states(strategy="fsdp", gpus=4)
    inside = sent(strategy="fsdp", gpus=4)
    between = {"replica_all_reduce": 2 * 1 / 2 * 250 * 4, "replica_messages": 2}
    assert sent(**groups) == {**inside, **between}
    three = sent(**groups, grad_accum=3)
    assert three == {**sent(strategy="fsdp", gpus=4, grad_accum=3), **between}
    four = sent(**{**groups, "gpus": 16})
    assert four["replica_all_reduce"] == 2 * 3 / 4 * 250 * 4


def test_tensor_parallel_ranks_of_fsdp_send_their_parts_of_blocks_and_whole_embeddings():
    """Of 1,000 parameters 200 are outside of split layers: each of two ranks has 600, among two groups."""
    experiment = Experiment(strategy="fsdp", gpus=4, tensor_parallel=2)
    model = replace(MODEL, undivided=200)
    found = experiment.parallel_strategy.traffic(experiment, model)
    assert (found.all_gather, found.reduce_scatter) == (2 * 600 * 2 / 2, 600 * 4 / 2)
    assert found.replica_all_reduce == 0


def test_zero_sends_whole_gradients_and_from_stage_1_gathers_weights():
    reduced, gathered = 1000 * 2 * 2 * 3 / 4, 1000 * 2 * 3 / 4
    assert sent(gpus=4)["all_reduce"] == reduced
    assert "all_gather" not in sent(gpus=4)
    accumulated = {"gpus": 4, "grad_accum": 5}
    for stage, reductions in ((1, 1), (2, 5)):
        step = sent(zero_stage=stage, **accumulated)
        assert (step["all_reduce"], step["all_gather"]) == (reductions * reduced, gathered)
    step = sent(gpus=4, zero_stage=3)  # a small model stays gathered between the passes
    assert (step["all_gather"], step["reduce_scatter"]) == (gathered, gathered)
    step = sent(zero_stage=3, **accumulated)
    assert (step["all_gather"], step["reduce_scatter"]) == (5 * gathered, 5 * gathered)


def test_zero_3_keeps_what_it_may_and_gathers_the_rest_twice():
    """Of 1,000 weights 500 may stay, but only 250 of them are used again soon enough."""
    keys = {"stage3_max_live_parameters": 500, "stage3_max_reuse_distance": 250}
    step = sent(gpus=4, zero_stage=3, deepspeed={"zero_optimization": keys})
    assert step["all_gather"] == 1.75 * 1000 * 2 * 3 / 4


@pytest.mark.parametrize(
    ("settings", "computed", "trained", "built", "masters", "autocast"),
    [
        ({}, "bf16", "bf16", "bf16", True, False),
        ({"precision": "fp32"}, "fp32", "fp32", "fp32", False, False),
        ({"mixed_precision": "autocast"}, "bf16", "fp32", "fp32", False, True),
        ({"mixed_precision": "autocast", "lora_rank": 8}, "bf16", "fp32", "bf16", False, True),
        ({"strategy": "ddp", "gpus": 2}, "bf16", "fp32", "fp32", False, True),
        ({"strategy": "plain", "precision": "fp16"}, "fp16", "fp32", "fp32", False, True),
        ({"strategy": "plain", "mixed_precision": "none"}, "bf16", "bf16", "bf16", False, False),
        ({"zero_stage": 1, "mixed_precision": "none"}, "bf16", "bf16", "bf16", False, False),
        ({"strategy": "fsdp", "gpus": 2}, "bf16", "fp32", "fp32", False, False),
    ],
)
def test_number_formats(settings, computed, trained, built, masters, autocast):
    numbers = Experiment(**settings).numbers
    assert (numbers.computed, numbers.trained, numbers.built) == (computed, trained, built)
    assert (numbers.masters, numbers.autocast) == (masters, autocast)


def test_gradients_are_accumulated_in_fp32_where_several_are_added_in_bf16():
    several = {"zero_stage": 1, "gpus": 2, "grad_accum": 2}
    assert Experiment(**several).numbers.accumulated_bytes == 4
    assert Experiment(**several | {"grad_accum": 1}).numbers.accumulated_bytes == 2
    assert Experiment(**several, grad_accum_dtype="bf16").numbers.accumulated_bytes == 2
    assert Experiment(**several | {"zero_stage": 0}).numbers.accumulated_bytes == 2


def test_labels():
    assert Experiment(zero_stage=1, gpus=4, tensor_parallel=2).label == "TP 2 x ZeRO 1"
    assert Experiment(strategy="ddp", gpus=2).label == "DDP"
    assert strategy("plain").phrase == "the plain loop"
    assert strategy("megatron").label_of() == "megatron"
    assert (strategy("megatron").label_of(1), strategy("deepspeed").label_of()) == ("ZeRO 1", "")
    assert strategy(None).label_of() == ""
    assert strategies.without_zero() == ["plain", "ddp", "fsdp"]
    assert parallelism_order() == ("plain", "DDP", "FSDP", "ZeRO 0", "ZeRO 1", "ZeRO 2", "ZeRO 3")
    unknown = {"strategy": "fsdp", "tensor_parallel": None, "pipeline_parallel": 2.0}
    assert parallelism(unknown) == "TP ? x PP 2 x FSDP"
    assert parallelism({"zero_stage": 3.0}) == "ZeRO 3"
    assert parallelism({"strategy": "ddp", "tensor_parallel": None}) == "DDP"
    assert Experiment(strategy="fsdp", gpus=8, shard_size=4).label == "HSDP 4"
    assert parallelism({"strategy": "fsdp", "tensor_parallel": 2, "shard_size": 8.0}) == (
        "TP 2 x HSDP 8"
    )
    assert parallelism({"strategy": "fsdp", "shard_size": None}) == "FSDP"


def test_an_unknown_setting_has_no_value():
    with pytest.raises(AttributeError):
        strategy("deepspeed").shards_weights(SimpleNamespace(strategy="deepspeed"))


def test_every_trainer_and_rule_of_memory_that_is_named_exists():
    for chosen in STRATEGIES.values():
        for stages in (1, 2):
            trainer = chosen.trainer(SimpleNamespace(pipeline_parallel=stages))
            assert isinstance(strategies.load(trainer), type)
        assert callable(strategies.load(chosen.memory_rule))


def test_rows_of_tables_become_experiments():
    gap = float("nan")
    row = {"strategy": "fsdp", "gpus": 2.0, "zero_stage": gap, "profile": 1.0, "status": "ok"}
    read = Experiment.of_row({**row, "deepspeed": "0.19.8", "compile": True})
    assert read == Experiment.recorded(
        {"strategy": "fsdp", "gpus": 2, "profile": True, "compile": "default"}
    )
    key = "deepspeed.zero_optimization.stage3_prefetch_bucket_size"
    assert Experiment.of_row({key: 5.0}).deepspeed == {key.partition(".")[2]: 5}


class Kept(Fsdp):
    """FSDP2 that keeps gathered weights until the backward pass."""

    name = "kept"
    label = "FSDP, kept"
    gathers_per_micro_batch = 1


@pytest.fixture
def plugged(monkeypatch):
    def plug(place):
        monkeypatch.setattr(
            registry, "PLUGINS", {"kept": EntryPoint("kept", place, registry.GROUP)}
        )
        registry._of_plugin.cache_clear()

    yield plug
    registry._of_plugin.cache_clear()


def test_a_package_adds_a_strategy_in_one_class(plugged):
    plugged(f"{__name__}:Kept")
    kept = Experiment.recorded({"strategy": "kept", "gpus": 2})
    assert (kept.label, kept.name.partition("_")[0]) == ("FSDP, kept", "kept")
    traffic = kept.parallel_strategy.traffic(kept, MODEL)
    assert (traffic.all_gather, traffic.data_messages) == (1000 * 2 / 2, (1 + 1) * 2)


@pytest.mark.parametrize("place", ["no_such_module:Kept", f"{__name__}:MODEL", f"{__name__}:Fsdp"])
def test_a_strategy_that_cannot_be_loaded_is_reported_once(plugged, place):
    plugged(place)
    with pytest.warns(UserWarning, match="strategy 'kept' cannot be used"):
        found = strategy("kept")
    assert isinstance(found, Strategy)
    assert not found.is_runnable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert strategy("kept") is found


def test_a_rank_without_the_strategys_package_says_so():
    message = "strategy 'fsdp_kept' is not installed on this host: install its package here, too"
    with pytest.raises(SettingsError, match=f"^{message}$"):
        strategy("fsdp_kept").trainer(None)


@pytest.mark.parametrize(
    ("settings", "forward", "computed", "stream", "accumulated"),
    [
        ({}, "bf16", 2, 2, 2),
        ({"precision": "fp32"}, "fp32", 4, 4, 4),
        ({"precision": "tf32", "device": "cuda"}, "fp32", 4, 4, 4),
        ({"mixed_precision": "autocast"}, "fp32", 2, 4, 4),
        ({"mixed_precision": "autocast", "lora_rank": 8}, "bf16", 2, 2, 4),
        ({"strategy": "ddp", "gpus": 2}, "fp32", 2, 4, 4),
        ({"strategy": "fsdp", "gpus": 2}, "bf16", 2, 2, 4),
        ({"strategy": "fsdp", "gpus": 2, "mixed_precision": "none"}, "bf16", 2, 2, 2),
        ({"strategy": "ddp", "gpus": 2, "mixed_precision": "none"}, "bf16", 2, 2, 2),
        ({"zero_stage": 1, "gpus": 2, "grad_accum": 2}, "bf16", 2, 2, 4),
        ({"zero_stage": 1, "grad_accum_dtype": "fp32"}, "bf16", 2, 2, 4),
        ({"zero_stage": 1, "gpus": 2, "pipeline_parallel": 2, "grad_accum": 2}, "bf16", 2, 2, 2),
    ],
    ids=str,
)
def test_bytes_of_numbers(settings, forward, computed, stream, accumulated):
    """Of products, of the residual stream, and of a gradient that is kept until the update."""
    numbers = Experiment(**settings).numbers
    assert numbers.forward == forward
    assert numbers.computed_bytes == computed
    assert numbers.stream_bytes == stream
    assert numbers.accumulated_bytes == accumulated
    way = settings.get("mixed_precision", "native")
    is_cast = way == "autocast" or (settings.get("strategy") == "ddp" and way == "native")
    assert numbers.casts_weights == (is_cast and not settings.get("lora_rank"))


def test_pure_bf16_keeps_eight_bytes_a_parameter_everywhere():
    """Two of the weight, two of its gradient, four of both moments, whole or shared."""
    pure = {"mixed_precision": "none"}
    assert states(strategy="plain", **pure) == (2, 2, 4, 0)
    assert states(strategy="fsdp", gpus=4, **pure) == (2 / 4, 2 / 4, 4 / 4, 0)
    assert states(zero_stage=1, gpus=4, **pure) == (2, 2, 4 / 4, 0)


def test_messages_and_what_overlaps():
    """1,000 gradients in buckets of 250 are 4 messages, and one of what is left."""
    step = sent(gpus=4, zero_stage=1, bucket_elements=250)
    assert step["data_messages"] == 2 * (1000 / 250 + 1)  # reduced and gathered
    assert sent(gpus=4, zero_stage=1)["data_messages"] == 2 * (1000 / 5e8 + 1)
    assert "reduction_overlaps" not in step
    assert sent(gpus=4, zero_stage=1, overlap_comm="on")["reduction_overlaps"] == 1
    step = sent(gpus=4, zero_stage=3)
    assert step["data_messages"] == (1 + 1) * 2 * 2  # gathers and reductions of two blocks
    assert (step["reduction_overlaps"], step["gather_overlaps"]) == (1, 1)
    assert "reduction_overlaps" not in sent(gpus=4, zero_stage=3, overlap_comm="off")


def test_a_tensor_parallel_rank_sends_its_part_of_the_model():
    """Of eight GPUs four share the same half of the model: 500 weights."""
    step = sent(gpus=8, zero_stage=1, tensor_parallel=2)
    assert (step["all_reduce"], step["all_gather"]) == (500 * 2 * 2 * 3 / 4, 500 * 2 * 3 / 4)


def test_quantized_communication_of_zeropp():
    """A byte for a weight, and half a byte for a gradient, once inside and once between nodes."""
    quantized = Experiment(gpus=4, zero_stage=3).model_copy(update={"zeropp": "all"})
    step = asdict(quantized.parallel_strategy.traffic(quantized, MODEL))
    assert (step["all_gather"], step["all_to_all"]) == (1000 * 3 / 4, 1000 * 3 / 4 * 0.5 * 2)
    assert step["reduce_scatter"] == 0


def test_bytes_of_a_gradient_that_is_sent():
    """Under autocast ZeRO sends those of linear layers in half; GPT-2 has Conv1D instead."""
    gpt2 = ModelSize(parameters=1000, trained=1000, layers=2, hidden=10, family="gpt2")

    def each(model=MODEL, **settings):
        experiment = Experiment(gpus=4, **settings)
        return experiment.parallel_strategy.reduced_bytes(experiment, model)

    autocast = {"mixed_precision": "autocast"}
    assert [each(zero_stage=stage, **autocast) for stage in (0, 1)] == [4, 2]
    assert each(gpt2, zero_stage=1, **autocast) == 4
    assert each(strategy="ddp", lora_rank=8) == 2
    # PowerSGD: 1.4 x hidden numbers for each of hidden x hidden.
    compressed = {"gradient_compression": "powersgd", "powersgd_rank": 2}
    assert each(strategy="ddp", **compressed) == pytest.approx(4 * 1.4 * 2 / 10)
    assert each(strategy="fsdp") == 4
    pure = {"mixed_precision": "none"}
    shared = ({"strategy": "ddp"}, {"strategy": "fsdp"}, {"zero_stage": 2})
    assert [each(**settings, **pure) for settings in shared] == [2, 2, 2]


@pytest.mark.parametrize(
    ("settings", "each"),
    [({}, 2), ({"precision": "fp32"}, 4), ({"mixed_precision": "autocast"}, 4)],
    ids=str,
)
def test_bytes_of_a_weight_that_fsdp_gathers(settings, each):
    assert sent(strategy="fsdp", gpus=2, **settings)["all_gather"] == 2 * 1000 * each / 2


def test_which_class_trains():
    assert Experiment().parallel_strategy.trainer(Experiment()).endswith(":DeepSpeedTrainer")
    pipeline = Experiment(zero_stage=1, gpus=2, pipeline_parallel=2, grad_accum=2)
    assert pipeline.parallel_strategy.trainer(pipeline).endswith(":PipelineTrainer")


def test_other_programs_have_masters_in_half_precision():
    other = Experiment.recorded({"strategy": "elsewhere", "zero_stage": 1, "gpus": 4})
    assert other.states.of_rank == (2, 2, 12 / 4, 0, 0, 0, 0, 0, "")


@pytest.mark.parametrize(
    ("settings", "of_optimizer", "of_weights"),
    [
        ({"zero_stage": 0}, False, False),
        ({"zero_stage": 1}, True, False),
        ({"zero_stage": 2}, True, False),
        ({"zero_stage": 3}, True, True),
        ({"strategy": "fsdp"}, True, True),
        ({"strategy": "ddp"}, False, False),
    ],
    ids=str,
)
def test_what_ranks_have_a_share_of(settings, of_optimizer, of_weights):
    made = Experiment(gpus=2, **settings)
    assert made.parallel_strategy.shards_optimizer(made) is of_optimizer
    assert made.parallel_strategy.shards_weights(made) is of_weights
