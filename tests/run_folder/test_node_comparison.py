"""In what hosts differ: only what should be the same everywhere, the most common value first."""

from dsnb.run_folder.node_comparison import differences

SAME = {
    "torch": "2.13.0",
    "gpus": [{"name": "H100", "memory_gib": 79.6}] * 2,
    "clocks": [{"sm_clock_max_mhz": 1980, "power_limit_w": 700.0}] * 2,
    "cpu": "EPYC",
    "memory_gib": 2015.2,
    "date_utc": "now",
}


def test_hosts_of_one_kind_do_not_differ():
    assert differences([]) == {}
    assert differences([("a", SAME), ("b", {**SAME, "date_utc": "later", "memory_gib": 2015.4})]) == {}


def test_a_field_that_is_unknown_is_not_compared():
    assert differences([("a", SAME), ("not reached", {}), ("old", {"cpu": "EPYC"})]) == {}


def test_each_difference_names_its_values_and_hosts():
    def against(**changes):
        return [*differences([("a", SAME), ("b", {**SAME, **changes}), ("c", SAME)]).values()]

    assert against(torch="2.12.0") == ["torch: 2.13.0 on a and c, 2.12.0 on b"]
    assert against(gpus=[]) == ["gpus: 2 x H100 80 GiB on a and c, none on b"]
    assert against(cpu=None) == ["cpu: EPYC on a and c, none on b"]
    assert against(memory_gib=1007.5) == ["memory_gib: 2015 GiB on a and c, 1008 GiB on b"]
    slower = [{"sm_clock_max_mhz": 1755, "power_limit_w": 350.0}, SAME["clocks"][0]]
    assert against(clocks=slower) == [
        "clocks: 2 x 1980 MHz 700 W on a and c, 1 x 1755 MHz 350 W, 1 x 1980 MHz 700 W on b"
    ]


def test_the_most_common_value_comes_first_and_many_hosts_are_counted():
    odd = [("odd", {**SAME, "torch": "1"})]
    assert differences(odd + [(f"n{number}", SAME) for number in range(6)]) == {
        "torch": "torch: 2.13.0 on 6 nodes, 1 on odd"
    }
    assert differences(odd * 2 + [("n", SAME)] * 9) == {"torch": "torch: 1 on odd, 2.13.0 on n"}


def test_values_from_elsewhere_are_shown_in_few_words():
    (sentence,) = differences([("a", {"gpus": "x" * 1000}), ("b", {"gpus": [7, {"name": {}}]})]).values()
    assert sentence == f"gpus: {'x' * 200} on a, 1 x 7, 1 x none on b"
