"""transformers' Trainer trains an adapted model as it trains the model itself, alone and on two ranks."""

import json

import pytest

from tests.support.ranks import run_ranks


def trained(tmp_path, ranks):
    """Return the losses of each training in the order of the worker's, by rank 0."""
    run_ranks("tests.workers.adapted_trainer", tmp_path, ranks)
    return json.loads((tmp_path / "result.json").read_text())


@pytest.mark.process
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_has_the_losses_of_the_model_itself(ranks, tmp_path):
    """With padded batches, accumulation, clipping, its own checkpointing argument, evaluation and checkpoints."""
    found = trained(tmp_path, ranks)
    own = found.pop("own")
    assert len(own["losses"]) == 3
    assert own["losses"][0] != own["losses"][2]
    for name, ours in found.items():
        assert ours["losses"] == pytest.approx(own["losses"], rel=1e-5), name
        assert ours["evaluated"] == pytest.approx(own["evaluated"], rel=1e-5), name
        assert ours["saved"] == own["saved"], name
