"""Which ranks train on which data, and which data cannot be trained on."""

import pytest

from tests.support import lazy

torch, data = lazy.Module("torch"), lazy.Module("dsnb.train.data")


def test_ranks_that_share_a_model_get_the_same_data(small):
    experiment = small(gpus=8, tensor_parallel=2, pipeline_parallel=2)
    assert [data.data_rank(experiment, rank) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("~" * 20, "has 20 tokens: seq_len 32 needs more text"),
     ("~" * 100, "tokenizer 'bytes' gives token 126: the model's vocabulary ends at 49")],
)  # fmt: skip
def test_a_text_that_does_not_suit_the_settings(small, tmp_path, text, problem):
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match=problem):
        data.batches(small(data=str(tmp_path / "text.txt")), 50, 0, torch.device("cpu"))
