"""Which ranks train on which data."""

from tests.support import lazy

data = lazy.Module("dsnb.train.data")


def test_ranks_that_share_a_model_get_the_same_data(small):
    experiment = small(gpus=8, tensor_parallel=2, pipeline_parallel=2)
    assert [data.data_rank(experiment, rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]
