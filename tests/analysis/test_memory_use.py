"""Memory measured on H200s falls as theory says, as far as the published table of dsnb's own runs goes."""

import pytest

import dsnb
from dsnb.analysis import memory_use
from dsnb.formulas.model_shapes import PRESETS
from dsnb.settings.experiment import DEFAULTS


@pytest.fixture(scope="module")
def found():
    return memory_use.footprint(dsnb.published("h200_memory")).set_index("experiment")


def gib(found, name):
    return found.loc[f"{name}", "measured_gib"]


def test_every_setting_takes_at_least_what_theory_cannot_do_without(found):
    """Peaks of states and activations need not come together, so states alone are the bound."""
    states = found[["weights_gib", "gradients_gib", "optimizer_gib"]].sum(axis=1)
    below = found[found["measured_gib"] < 0.97 * states]
    assert list(below.index) == []


def test_checkpointing_saves_where_activations_are_nearly_all_there_is(found):
    name = "opt-350m_zs0_bf16_gpus1_bs32_sl1024_ga2"
    measured = [gib(found, name + part) for part in ("", "_ac2", "_ac", "_ac-cpu")]
    assert measured == sorted(measured, reverse=True)
    theory = [found.loc[name + part, "theory_gib"] for part in ("", "_ac2", "_ac", "_ac-cpu")]
    for before, after in ((0, 1), (1, 2), (2, 3)):
        assert measured[before] - measured[after] == pytest.approx(theory[before] - theory[after], rel=0.15)


def test_offload_takes_optimizer_states_from_the_gpu(found):
    name = "opt-1.3b_zs{}_bf16_gpus2_bs8_sl1024_ga2"
    for stage in (1, 2, 3):
        base = name.format(stage)
        saved = gib(found, base) - gib(found, f"{base}_offload-optimizer-cpu")
        assert saved == pytest.approx(found.loc[base, "optimizer_gib"], rel=0.35)


def test_accumulation_in_fp32_keeps_four_bytes_more_a_parameter():
    settings = {**DEFAULTS, "model": "opt-1.3b", "zero_stage": 1, "gpus": 2, "grad_accum": 2, "micro_batch_size": 8}
    parameters = PRESETS["opt-1.3b"].parameters
    fp32, bf16 = (memory_use.theory({**settings, "grad_accum_dtype": dtype}) for dtype in ("fp32", "bf16"))
    assert sum(fp32.values()) - sum(bf16.values()) == pytest.approx((4 - 2) * parameters / 2**30)
