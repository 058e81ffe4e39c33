"""The schedule of a batch-size ramp-up: the published one from its constraints, and what holds for every schedule."""

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.results.statistics.rampup import fastest_replica
from dsnb.settings.records import paths

PUBLISHED = pd.read_csv(paths.literature("bigscience_1b3_rampup"))
STAGE = ["nodes", "global_batch_size", "micro_batch_size"]


def measured(gpu):
    table = dsnb.published("bigscience_1b3")
    return table[table["gpu_name"] == gpu]


def runs_of(*rows, **columns):
    """Give ok runs of (micro-batch, tokens/s per GPU, pipeline stages)."""
    names = ["micro_batch_size", "tokens_per_s_per_gpu", "pipeline_parallel"]
    return pd.DataFrame(rows, columns=names).assign(
        **{"status": "ok", "model": "gpt2", "gpu_name": "A", "gpus": 8, "source": "dsnb", **columns}
    )


@pytest.mark.parametrize(("gpu", "last"), [("V100-32GB", 128), ("V100-16GB", 512)])
def test_the_published_schedule_from_its_measurements(gpu, last):
    """The publication: 4 GPUs per node, batches doubled from 32, the fastest layout of the measured table."""
    table = dsnb.rampup(32, last, gpus_per_node=4, runs=measured(gpu))
    wanted = PUBLISHED.query("gpu_name == @gpu")[STAGE]
    assert table[STAGE].to_numpy().tolist() == wanted.to_numpy().tolist()
    assert set(table["grad_accum"]) == {1}


def test_efficiency_decides_how_many_nodes_the_first_batch_gets():
    """Micro-batch 1 runs at 93 % and 2 at 97 % of the best: the publication's 16, 8 or 4 nodes."""
    nodes = [
        dsnb.rampup(32, 64, gpus_per_node=4, runs=measured("V100-16GB"), least_efficiency=least)[
            "nodes"
        ].tolist()
        for least in (0.93, 0.95, 1)
    ]
    assert nodes == [[16, 16], [8, 8], [4, 8]]


def test_schedules_by_hand():
    table = dsnb.rampup(
        32, 256, gpus_per_node=4, micro_batch_size=1, max_nodes=16
    )  # then gradients are accumulated
    assert table[["nodes", "grad_accum"]].to_numpy().tolist() == [[8, 1], [16, 1], [16, 2], [16, 4]]
    table = dsnb.rampup(16, 64, gpus_per_node=8, micro_batch_size=2, increment=16)
    assert table[["global_batch_size", *STAGE[::2]]].to_numpy().tolist() == [
        [16, 2, 1], [32, 2, 2], [48, 3, 2], [64, 4, 2],
    ]  # fmt: skip
    table = dsnb.rampup(32, 128, gpus_per_node=4, micro_batch_size=1, ramp_samples=100, seq_len=10)
    assert table["until_samples"].tolist() == [
        64,
        128,
        pd.NA,
    ]  # 50 samples each, in steps of 32 and 64
    assert table["until_tokens"].tolist() == [640, 1280, pd.NA]
    table = dsnb.rampup(32, 128, gpus_per_node=4, micro_batch_size=1, ramp_samples=192)
    assert table["until_samples"].tolist() == [96, 224, pd.NA]  # 96 each: 3 steps of 32, 2 of 64
    assert table["until_tokens"].isna().all()  # their length is unknown
    alone = dsnb.rampup(32, 32, gpus_per_node=4, micro_batch_size=1, ramp_samples=100)
    assert alone["until_samples"].isna().all()


def test_equally_fast_micro_batches_and_unmeasured_sizes():
    runs = runs_of((2, 100, 1), (4, 101, 1), (2, 90, 2))
    table = dsnb.rampup(32, 32, gpus_per_node=8, runs=runs)
    assert table[STAGE].to_numpy().tolist() == [
        [2, 32, 2]
    ]  # 2 is as fast as 4, and lets twice the nodes work
    assert table["efficiency"].tolist() == pytest.approx([100 / 101])
    one_node = dsnb.rampup(32, 32, gpus_per_node=8, runs=runs, max_nodes=1)
    # Of equally fast ones, the larger micro-batch.
    assert one_node[["micro_batch_size", "grad_accum"]].to_numpy().tolist() == [[4, 1]]
    repeated = runs_of((2, 100, 2), (2, 100, 1), (2, 100, 1), (2, 130, 1))
    assert fastest_replica(repeated) == (1, {2: 100})  # the median; the smaller replica
    more = pd.concat([runs, runs_of((2, 300, 1), gpus=4), runs_of((8, 500, 1), status="oom")])
    assert fastest_replica(more) == (1, {2: 100, 4: 101})  # those on the most GPUs


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"first": 0}, "first is 0: give a whole number of at least 1"),
        ({"increment": 5}, "last is 128, but the batch grows by 5 from 32 on: choose 127 or 132, or another increment"),
        ({"runs": runs_of((1, 1, 1))},
         "give either micro_batch_size, the largest that fits, with replica_gpus, or measured runs"),
        ({"gpus_per_node": 64},
         "a global batch of 32 cannot be shared equally among 1 or more nodes of 64 GPUs with 1 a replica, in "
         "micro-batches that fit: choose other batch sizes, or fewer GPUs a node"),
        ({"micro_batch_size": None, "runs": pd.concat([runs_of((1, 1, 1)), runs_of((1, 1, 1), model="opt-125m")])},
         "the runs are of 2 tasks (gpt2; opt-125m): choose those of one"),
    ],
)  # fmt: skip
def test_what_is_refused(given, problem):
    with pytest.raises(SettingsError) as caught:
        dsnb.rampup(
            **{"first": 32, "last": 128, "gpus_per_node": 4, "micro_batch_size": 1, **given}
        )
    assert str(caught.value) == problem


def test_a_replica_of_unknown_size_is_not_one_gpu():
    unknown, known = runs_of((2, 100.0, None)), runs_of((2, 90.0, 2))
    message = "the tensor- or pipeline-parallel size of every run is unknown: give micro_batch_size and replica_gpus"
    with pytest.raises(SettingsError, match=f"^{message}$"):
        fastest_replica(unknown)
    assert fastest_replica(pd.concat([unknown, known], ignore_index=True)) == (2, {2: 90.0})
