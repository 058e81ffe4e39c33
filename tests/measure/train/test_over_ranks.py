"""Figures over ranks from what each rank has, which is given here: this process is rank 0, the others are fakes."""

import math

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
over_ranks = lazy.Module("dsnb.measure.train.over_ranks")
CPU = "cpu"
NAN = float("nan")


@pytest.fixture
def others(monkeypatch):
    """Let `others(*gathers)` say what the other ranks have, for each time that all figures are gathered."""

    def have(*gathers):
        left = iter(gathers)

        def gather(of_each, of_this):
            for place, figures in zip(of_each, [of_this, *next(left)], strict=True):
                place.copy_(torch.as_tensor(figures, dtype=of_this.dtype))

        monkeypatch.setattr("deepspeed.comm.get_world_size", lambda: 1 + len(gathers[0]))
        monkeypatch.setattr("deepspeed.comm.all_gather", gather)

    return have


def test_the_loss_of_a_step_is_the_mean_over_ranks(monkeypatch):
    monkeypatch.setattr("deepspeed.comm.get_world_size", lambda: 4)
    monkeypatch.setattr(
        "deepspeed.comm.all_reduce", lambda losses: losses.add_(torch.tensor([9.0, 3.0]))
    )
    own = torch.tensor([3.0, 1.0])
    assert over_ranks.mean_of_ranks(own) == [3.0, 1.0]
    assert own.tolist() == [3.0, 1.0]  # the meter writes them


def test_a_sum_needs_every_rank_and_a_maximum_one(others):
    others([[5.0], [6.0]], [[NAN], [6.0]], [[5.0], [6.0]], [[9.0], [2.0]])
    assert over_ranks.sum_of_ranks(4.0, CPU) == 15.0
    assert over_ranks.sum_of_ranks(4.0, CPU) is None
    assert over_ranks.sum_of_ranks(None, CPU) is None
    assert over_ranks.max_of_ranks(4.0, CPU) == 9.0
    assert over_ranks.max_of_ranks(None, CPU) is None


def test_peaks_are_of_the_fullest_gpu_and_of_the_fullest_host(others, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "0")
    # host, peak of the rank, the same without what it shares, then of the GPU: allocated, reserved
    others([[0, 300, 20, 70, 75], [1, 400, 250, 60, 79], [1, 500, 240, 50, 71]])
    found = over_ranks.peaks_of_ranks({"allocated": 65.0, "reserved": 66.0}, CPU)
    assert found == {
        "allocated": 70.0,
        "reserved": 79.0,
        "host_memory_gib": 490.0,
        "rank_host_memory_gib": 500.0,
    }


def test_the_skew_is_that_of_timed_steps_and_the_slowest_rank_has_the_longest_forward_passes(
    others,
):
    others([[2.0, 2.0], [2.0, 4.0]], [[3.0, 3.0], [1.0, 1.0]])
    assert over_ranks.skew_of_ranks([1.0, 2.0], [1.0, 1.0], CPU) == {
        "step_skew": 0.5,  # 0 and 1
        "forward_skew": 2.0,
        "rank_step_s": [1.5, 2.0, 3.0],
        "rank_forward_s": [1.0, 3.0, 1.0],
        "slowest_rank": 1,
    }
    others([[2.0, 2.0], [2.0, 4.0]])
    found = over_ranks.skew_of_ranks([1.0, 2.0], [], CPU)  # of a pipeline
    assert (found["slowest_rank"], found["forward_skew"]) == (2, None)


@pytest.mark.parametrize("masters", [False, True])
def test_the_update_is_what_changed_beyond_weight_decay(small, others, masters):
    """Two updates at a rate of 1 shrink a weight to 0.99 ** 2 of itself."""
    experiment = small(learning_rate=1.0)
    weight = torch.nn.Parameter(torch.tensor([2.0, 4.0]))
    optimizer = torch.optim.SGD([weight])
    trained = weight
    if masters:  # of DeepSpeed's optimizer: the weights in half precision may stay as they are
        trained = torch.tensor([2.0, 4.0])
        optimizer.single_partition_of_fp32_groups = [trained]
    watch = over_ranks.WeightWatch(optimizer)
    trained.data *= 0.99**2
    others([[0.0, 20.0, 2.0]], [[0.75, 20.0, 2.0]], [[0.0, 0.0, 0.0]])
    found = watch.changes(experiment, 2, CPU)
    assert found["weights_moved"] is False
    assert found["update_rms"] < 1e-6
    trained.data += torch.tensor([0.3, -0.4])  # squares: 0.25 here, 0.75 on the other rank
    found = watch.changes(experiment, 2, CPU)
    assert found == {
        "update_rms": pytest.approx(math.sqrt((0.25 + 0.75) / 4), rel=1e-5),
        "weights_moved": True,
    }
    nothing = over_ranks.WeightWatch(torch.optim.SGD([torch.nn.Parameter(torch.zeros(0))]))
    assert nothing.changes(experiment, 2, CPU) == {"update_rms": None, "weights_moved": None}


def test_pure_bf16_loses_the_decay_of_a_step(small, others):
    """It is less than half a bit of a weight; a weight that changes by one has moved."""
    pure = small(strategy="plain", precision="bf16", mixed_precision="none")
    weight = torch.nn.Parameter(torch.ones(100, dtype=torch.bfloat16))
    watch = over_ranks.WeightWatch(torch.optim.SGD([weight]))
    others([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]])
    assert watch.changes(pure, 2, CPU)["weights_moved"] is False
    weight.data[0] += 2**-7
    assert watch.changes(pure, 2, CPU)["weights_moved"] is True


def test_weights_that_are_not_finite_have_moved(small, others):
    weight = torch.nn.Parameter(torch.ones(2))
    watch = over_ranks.WeightWatch(torch.optim.SGD([weight]))
    weight.data[:] = NAN
    others([[0.0, 2.0, 2.0]])
    assert watch.changes(small(), 1, CPU)["weights_moved"] is True
