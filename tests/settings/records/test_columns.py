"""The registry: what is declared once is what every table and record says; paths; in what hosts differ."""

import pytest

from dsnb.results.runs import labels
from dsnb.settings.experiment import DECLARED, DEFAULTS, SUPERVISION, Experiment
from dsnb.settings.records import columns
from dsnb.settings.records.node_comparison import environment_differences
from dsnb.settings.records.record_schema import cleaned


def test_a_setting_is_everywhere_what_its_declaration_says():
    lora = DECLARED["lora_rank"]
    assert (lora.title, lora.usual, lora.is_axis) == ("LoRA rank", 0, True)
    assert labels.axis("lora_rank").describe(8) == "LoRA rank 8"
    assert Experiment(device="cpu", lora_rank=8).name.endswith("_lora8")
    assert "lora_rank" in columns.RUN_NUMBERS
    assert cleaned("experiment.json", {"lora_rank": 8, "device": "cpu"}) == (
        {"lora_rank": 8, "device": "cpu"},
        None,
    )
    message = "experiment.json: lora_rank is -1: it must be at least 0"
    assert cleaned("experiment.json", {"lora_rank": -1}) == ({}, message)
    assert set(DEFAULTS) == {*columns.SETTINGS, *columns.NO_COLUMNS}
    others = columns.NO_COLUMNS - {*SUPERVISION}
    assert others == {"device", "command", "deepspeed", "script"}


CLOCKS, SLOWER = (
    {"sm_clock_max_mhz": mhz, "power_limit_w": watts}
    for mhz, watts in ((1980, 700.0), (1755, 350.0))
)
SAME = {
    "torch": "2.13.0",
    "gpus": [{"name": "H100", "memory_gib": 79.6}] * 2,
    "clocks": [CLOCKS] * 2,
}
SAME |= {"cpu": "EPYC", "memory_gib": 2015.2, "date_utc": "now"}


@pytest.mark.parametrize(
    ("changes", "sentences"),
    [
        ({"date_utc": "later", "memory_gib": 2015.4}, []),
        ({"gpus": []}, ["gpus: 2 x H100 80 GiB on a and c, none on b"]),
        (
            {"clocks": [SLOWER, CLOCKS]},
            ["clocks: 2 x 1980 MHz 700 W on a and c, 1 x 1755 MHz 350 W, 1 x 1980 MHz 700 W on b"],
        ),
        (
            {"gpus": "x" * 1000, "cpu": [7, {"name": {}}]},  # from elsewhere
            [
                "cpu: EPYC on a and c, 1 x 7, 1 x none on b",
                f"gpus: 2 x H100 80 GiB on a and c, {'x' * 200} on b",
            ],
        ),
    ],
)
def test_each_difference_names_its_values_and_hosts(changes, sentences):
    assert [
        *environment_differences([("a", SAME), ("b", {**SAME, **changes}), ("c", SAME)]).values()
    ] == sentences


def test_unknown_fields_are_not_compared_and_many_hosts_are_counted():
    assert (
        environment_differences([("a", SAME), ("not reached", {}), ("old", {"cpu": "EPYC"})]) == {}
    )
    hosts = [("odd", {**SAME, "torch": "1"}), *((f"n{number}", SAME) for number in range(6))]
    assert environment_differences(hosts) == {"torch": "torch: 2.13.0 on 6 nodes, 1 on odd"}
