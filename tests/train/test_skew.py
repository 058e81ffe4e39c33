"""How far the slowest rank is off the others: by hand, and in runs with a slow rank."""

import pytest

import dsnb
from dsnb.files import records
from tests.support import lazy

torch, over_ranks = lazy.Module("torch"), lazy.Module("dsnb.train.over_ranks")


def test_skew_by_hand():
    times_s = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.5, 1.0, 4.0]])
    means_s = pytest.approx([1, 4 / 3, 6.5 / 3])
    assert over_ranks.compare(times_s) == {"skew": 1.0, "slowest": 2, "means_s": means_s}
    two = over_ranks.compare(torch.tensor([[1.0], [3.0]]))
    assert (two["skew"], two["slowest"]) == (0.5, 1)  # the median of two is their mean
    nothing = {"skew": None, "slowest": None, "means_s": None}
    assert over_ranks.compare(torch.tensor([[1.0, 2.0]])) == over_ranks.compare(torch.empty(2, 0)) == nothing


def test_a_latecomer_is_seen_in_the_forward_pass_alone(run_small, tmp_path):
    """One rank begins every step 0.3 s late: all steps become longer, and only its forward pass ends late."""
    result, run = run_small(worker="tests.workers.latecomer", gpus=2, zero_stage=1)
    assert result.status == "ok", result.message()
    record = records.read_json(run.worker)
    assert min(record["rank_step_s"]) > 0.3
    assert record["step_skew"] < 0.2
    assert record["slowest_rank"] == 1
    assert record["rank_forward_s"][1] > record["rank_forward_s"][0] + 0.15
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert row["forward_skew"] == record["forward_skew"] > 0.1
