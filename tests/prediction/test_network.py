"""Steps over slow networks, as `benchmarks/network.csv` has them."""

import numpy as np
import pytest

from benchmarks import network
from dsnb.prediction.gpus import find, link
from dsnb.prediction.step_time import count_step, step_times
from dsnb.settings.experiment import Experiment


@pytest.fixture(scope="module")
def table():
    """Measured steps with their predictions, without traces of memory."""
    rows = network.measured()
    counts = [
        count_step(
            Experiment(**row[network.SETTINGS].to_dict(), nodes=2, device="cuda"),
            find(row["gpu"]),
            link(f"eth:{row['gbit']:g}/node"),
        )
        for _, row in rows.iterrows()
    ]
    return rows.assign(predicted_s=step_times(counts).step_time_s)


def test_measured_steps_over_slow_networks_are_predicted(table):
    error = np.log(table["predicted_s"] / table["step_s"]).abs()
    assert error.mean() < 0.12
    slow = table["limit_gbit"].between(1, 2.5)
    assert error[slow].max() < 0.12


def test_the_fastest_settings_and_the_slowest_over_a_slow_network_are_predicted(table):
    accumulated = table[(table["grad_accum"] == 8) & (table["limit_gbit"] == 10)]
    assert len(accumulated) == 5
    measured = accumulated.sort_values("step_s").index
    predicted = accumulated.sort_values("predicted_s").index
    assert set(measured[:2]) == set(predicted[:2])
    assert measured[-1] == predicted[-1]


def test_a_network_that_a_node_shares_is_divided_by_its_gpus(table):
    experiment = Experiment(model="gpt2", gpus=4, nodes=2, zero_stage=1, device="cuda")
    shared = count_step(experiment, find("H200"), link("eth:10/node"))
    own = count_step(experiment, find("H200"), link("eth:5"))
    assert shared == own
