"""Groups of nodes: the slow one is found and nobody else, whatever was measured; 64 nodes take seconds."""

import json
import math
import re
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dsnb
from dsnb.analysis import node_differences as nodes
from dsnb.analysis import node_groups, scaling, slow_nodes
from dsnb.cli.app import app
from dsnb.errors import SettingsError
from dsnb.explorer import single_runs
from dsnb.explorer.data import read
from dsnb.files import records
from dsnb.launcher.gpu_figures import gpu_figures
from dsnb.render import node_plots as groups_plots
from dsnb.render import node_report
from dsnb.run_folder.table_columns import GPU_COLUMNS, RUN_COLUMNS, RUN_NUMBERS
from dsnb.runs import run_folders
from dsnb.settings.params_file import read_params
from dsnb.sweep.params import load_sweep
from tests.support import collected_logs, foreign_logs, lazy, made_up

torch, skew = lazy.Module("torch"), lazy.Module("dsnb.train.skew")

HOSTS = [f"node-{number:03d}" for number in range(1, 65)]
SLOW, DEAD = HOSTS[41], HOSTS[18]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """64 hosts in groups of 1 to 64: one is 12 % slow, one fails."""
    folder = tmp_path_factory.mktemp("cluster") / "scaling"
    made_up.write_groups(folder, HOSTS, slow={SLOW: 0.12}, failing=[DEAD])
    (folder / "params.yaml").write_text("name: scaling\nexpect_samples_per_s: 90\n")
    return folder


def a_group(hosts, rate, status="ok", **more):
    """A run's row; `hosts` as `a+b`, the rate in samples/s per node."""
    count = hosts.count("+") + 1
    settings = {
        "sweep": "s",
        "experiment": f"nodes{count}",
        "repeat": 1,
        "source": "dsnb",
        "model": "gpt2",
        "cause": None,
    }
    where = {"hosts": hosts.replace("+", ","), "nodes": count, "gpus": 8 * count, "run_dir": None, "status": status}
    figures = {"samples_per_s": rate * count, "tokens_per_s": 100 * rate * count} if rate else {}
    return {**dict.fromkeys(RUN_COLUMNS), **settings, **where, **figures, **more}


def table_of(*rows, expected=None):
    return node_groups.groups(pd.DataFrame([row if isinstance(row, dict) else a_group(*row) for row in rows]), expected)


def alone(*rates):
    return [(host, rate) for host, rate in zip("abcdefgh", rates, strict=False)]


@pytest.mark.draws
def test_64_nodes_take_seconds_and_exactly_the_slow_one_is_suspected(cluster, monkeypatch):
    monkeypatch.setenv("DSNB_CACHE", "off")
    began = time.process_time()
    runs = dsnb.load_runs(cluster)
    table = node_groups.groups(runs)
    found = slow_nodes.suspects(table)
    parts = node_report.section(runs)
    assert time.process_time() - began < 10
    assert len(runs) == len(table) == 127
    assert list(found["hosts"]) == [SLOW]
    assert found["off_pct"][0] == pytest.approx(-12, abs=1.5)
    assert "4 of 4 larger groups with it are slow, too" in found["evidence"][0]
    assert set(table.loc[table["failed"] > 0, "hosts"].str.contains(DEAD)) == {True}
    assert list(table["verdict"].value_counts()[["fail", "pass"]]) == [7 + 6, 127 - 13]
    said = slow_nodes.describe(table)
    assert [sentence for sentence in said if sentence.startswith("Failed")] == [
        f"Failed: {DEAD} (zs0_bf16_gpus8_bs8_sl512: 1 failed): {DEAD}: no answer for 30 s; "
        "6 larger groups with it also failed."
    ]
    assert said[2] == "6 of 127 groups are below the 90 samples/s per node expected of them."
    assert [type(part).__name__ for part in parts].count("Picture") == 2


def test_efficiency_is_relative_to_one_node(cluster):
    runs = dsnb.load_runs(cluster)
    assert scaling.gpus_per_node(runs) == 8
    sizes = scaling.scaling(runs, scaling.gpus_per_node(runs)).set_index("gpus")
    assert set(sizes["workload"]) == {"opt-350m"}
    assert set(sizes["base_gpus"]) == {8}
    assert list(sizes["n"]) == [63, 31, 15, 7, 3, 1]
    assert sizes.loc[64, "efficiency"] == pytest.approx(0.99**3, abs=0.005)
    assert scaling.gpus_per_node(runs.iloc[:0]) is None


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.draws
def test_noise_is_no_reason_to_accuse_anybody(tmp_path, slow):
    """Over six clusters of 64 nodes with noise: the slow host each time, and never another one."""
    for seed in range(6):
        random = np.random.default_rng(seed)
        bad = HOSTS[random.integers(64)] if slow else None
        rows = []
        for size in (1, 2, 4, 8, 16, 32, 64):
            for first in range(0, 64, size):
                group = HOSTS[first : first + size]
                rate = 100 * random.normal(1, 0.01) * (0.85 if bad in group else 1)
                rows.append(a_group("+".join(group), rate))
        assert list(slow_nodes.suspects(table_of(*rows))["hosts"]) == ([bad] if slow else []), seed


PAIRS = [("a+b", 70), ("c+d", 100), ("e+f", 101), ("g+h", 99)]


@pytest.mark.parametrize(
    ("rows", "hosts"),
    [
        (alone(100, 100, 101, 90), ["d"]),
        (alone(100), []),
        (alone(100, 70), []),  # one of two: who is to say which of them is as it should be
        (alone(100, 130, 70), []),  # no two are alike
        (alone(100, 101, 99, 98), []),  # within 3 %
        (alone(100, 110, 90, 92, 108, 96), []),  # within the spread
        ([*alone(100, 101, 90, 99), ("d", 99)], ["c"]),
        (PAIRS, ["a or b"]),
        ([*PAIRS, ("a+c", 100), ("b+d", 71), ("e+g", 100), ("f+h", 100)], ["b"]),  # a was in a fast one
        ([*PAIRS, *alone(70, 100, 100, 101, 99, 100, 100, 100)], ["a"]),  # the pair is slow by what a is
        ([*PAIRS, *alone(95, 100, 100, 101, 99, 100, 100, 100)], ["a or b", "a"]),  # by much more
        ([*PAIRS, ("a+c", 100), ("b+d", 100), ("e+g", 100), ("f+h", 100)], []),  # both were in a fast one
        ([("a", None, "failed"), *alone(100, 100, 100)[1:]], []),
    ],
)  # fmt: skip
def test_who_is_suspected(rows, hosts):
    assert list(slow_nodes.suspects(table_of(*rows))["hosts"]) == hosts


def test_the_words_of_the_evidence():
    link = slow_nodes.suspects(table_of(*PAIRS, *alone(100, 100, 100, 101, 99, 100, 100, 100)))
    assert link["hosts"][0] == "a or b"
    assert link["evidence"][0] == (
        "together 29.6 % below the median of 4 groups of 2 nodes; each is as fast as others on its own: "
        "check the network between them"
    )
    unexplained = table_of(*PAIRS, ("a+c", 100), ("b+d", 100), ("e+g", 100), ("f+h", 100))
    sentence = "The group a, b is 30.0 % below the median, but each of its hosts was in a group of full speed: "
    assert f"{sentence}none is a suspect." in slow_nodes.describe(unexplained)
    assert slow_nodes.describe(table_of(*alone(100, 101, 99)))[:1] == [
        "No host is slow: none is 3 % below its median and outside the spread of the others."
    ]
    assert slow_nodes.describe(table_of(*alone(100, 70))) == [
        "nodes1: 2 nodes, median 85 samples/s per node, \N{MINUS SIGN}17.6 % to +17.6 % around it "
        "(fewer than 3 groups: too few to call one slow)."
    ]


def test_repeats_of_a_group_are_its_median():
    rows = [(host, rate) for rates in ([100, 100, 100], [101, 60, 100], [99, 100, 100]) for host, rate in alone(*rates)]
    table = table_of(*rows)
    assert list(table["n"]) == [3, 3, 3]
    assert list(table["per_node"]) == [100, 100, 100]  # one slow run of three is no slow host
    assert list(table["off_median_pct"]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("expected", "rows", "verdicts"),
    [
        (None, alone(100, 100), ["-", "-"]),
        (95, alone(100, 90), ["pass", "fail"]),
        ({"s": 95}, [("a+b", 100), ("c+d", 90)], ["pass", "fail"]),  # per node, whatever the size
        ({"other": 95}, alone(100), ["-"]),
        (95, [("a", 100), ("a", None, "oom")], ["fail"]),
        (None, [("a", None, "failed")], ["fail"]),
        (95, [("a", 100), ("a", None, "interrupted")], ["-"]),  # not over yet
    ],
)
def test_pass_and_fail(expected, rows, verdicts):
    assert list(table_of(*rows, expected=expected)["verdict"]) == verdicts


def test_a_failed_group_is_named_with_its_cause_even_without_hosts():
    lost = {**a_group("a", None, "failed"), "hosts": None, "cause": "no route\x1b[2J to host c"}
    (sentence,) = [one for one in slow_nodes.describe(table_of(*alone(100, 100), lost)) if "Failed" in one]
    assert sentence == "Failed: a group whose hosts are not known (nodes1: 1 failed): no route?[2J to host c."


def test_what_a_node_is_to_reach_stands_in_the_params_file(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("name: p\nexpect_samples_per_s: 85.5\ndefaults: {model: gpt2-tiny}\n")
    assert read_params(file).expect_samples_per_s == 85.5
    assert load_sweep(file).params["expect_samples_per_s"] == 85.5
    changed = load_sweep(file, {"expect_samples_per_s": 70, "repeats": 2})
    assert (changed.params["expect_samples_per_s"], len(changed.runs)) == (70, 2)
    finite = "give a finite number"
    for value, why in (("-1", "must be more than 0.0"), (".nan", finite), (".inf", finite),
                       ("many", "give a number"), ("true", "give a number")):  # fmt: skip
        file.write_text(f"name: p\nexpect_samples_per_s: {value}\n")
        with pytest.raises(SettingsError, match=rf"p.yaml': expect_samples_per_s is .*: .*{why}$"):
            read_params(file)


@pytest.mark.parametrize(
    "params", ["name: [", "!!python/object/apply:os.system [false]", "", "name: x\nodd: 1\n", None]
)
def test_a_damaged_params_file_expects_nothing(tmp_path, params):
    made_up.write_groups(tmp_path / "s", HOSTS[:2], sizes=(1,))
    if params is not None:
        (tmp_path / "s" / "params.yaml").write_text(params)
    assert set(node_groups.groups(dsnb.load_runs(tmp_path))["verdict"]) == {"-"}


def test_columns_of_nodes_and_hosts(tmp_path, monkeypatch):
    made_up.write_groups(tmp_path / "s", HOSTS[:2], sizes=(1, 2))
    made_up.write_folders(made_up.runs(6), tmp_path / "alone", steps=6)
    opened = []
    monkeypatch.setattr(
        run_folders.records, "read_json", lambda path, f=records.read_json: opened.append(path) or f(path)
    )
    runs = dsnb.load_runs(tmp_path)
    own = runs[runs["sweep"] == "s"]
    assert sorted(own["hosts"]) == [HOSTS[0], f"{HOSTS[0]},{HOSTS[1]}", HOSTS[1]]
    assert sorted(own["nodes"]) == [1, 1, 2]
    assert list(own["step_skew"]) == [0.002] * 3
    rest = runs[runs["sweep"] == "alone"]
    assert (len(rest), rest["hosts"].isna().all(), set(rest["nodes"])) == (6, True, {1})
    assert sum(str(path).endswith("nodes.json") for path in opened) == 3  # thousands of runs on one machine: none
    for names in (RUN_COLUMNS, RUN_NUMBERS):
        assert len(set(names)) == len(names)
    assert {"nodes", "hosts", "step_skew"} <= set(RUN_COLUMNS)


@pytest.mark.parametrize(
    ("include", "hosts"),
    [("n1@n2:0,1", "n1,n2"), ("n1", None), ("n1@n2@n3", None), ("", None), (None, None), (3, None), ("@", None)],
)
def test_a_host_that_was_never_reached_is_told_by_the_filter_of_its_group(tmp_path, include, hosts):
    made_up.write_groups(tmp_path / "s", HOSTS[:2], failing=HOSTS[:1], sizes=(2,))
    (run,) = tmp_path.rglob("run1")
    (run / "nodes.json").unlink()
    settings = records.read_json(run / "experiment.json")
    records.write_json(run / "experiment.json", {**settings, "include": include})
    assert dsnb.load_runs(tmp_path)["hosts"].tolist() == [hosts]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"nodes": 3}', '{"nodes": [3, {"host": 5}, {}]}', None])
def test_a_damaged_file_of_nodes_tells_no_hosts(tmp_path, content):
    made_up.write_groups(tmp_path / "s", HOSTS[:1])
    (file,) = tmp_path.rglob("nodes.json")
    file.unlink() if content is None else file.write_text(content)
    if content in {"", "{", "[]"}:
        with pytest.warns(dsnb.errors.DsnbWarning, match="nodes.json is left out"):
            runs = dsnb.load_runs(tmp_path)
    else:
        runs = dsnb.load_runs(tmp_path)
    assert runs["hosts"].isna().all()
    assert node_report.section(runs) == []


HOSTILE = ["<img src=x onerror=alert(1)>", "$\\frac{", "n\x1b[2J\u202egpj.exe", "x" * 3000, "=cmd()", "a,b"]


def test_hostile_names_are_only_shown(tmp_path):
    made_up.write_groups(tmp_path / "s", HOSTILE, slow={HOSTILE[1]: 0.5}, failing=HOSTILE[:1], sizes=(1, 2))
    (tmp_path / "s" / "params.yaml").write_text("name: s\nexpect_samples_per_s: 80\n")
    for path in tmp_path.rglob("nodes.json"):
        record = records.read_json(path)
        records.write_json(path, {**record, "differences": ["torch: <script>alert(1)</script> on <b>x</b>"]})
    runs = dsnb.load_runs(tmp_path)
    assert max(len(name) for one in runs["hosts"] for name in one.split(",")) == 253
    parts = node_report.section(runs)
    text = "".join(str(part) for part in parts if not hasattr(part, "png"))
    assert "&lt;script&gt;" in text
    assert "&lt;img src=x" in text
    assert not re.search(r"<(script|img|b)\b", text)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a?b" in text


def test_the_section_is_there_only_for_several_nodes_or_groups(tmp_path):
    assert node_report.section(made_up.runs(6).reindex(columns=RUN_COLUMNS)) == []
    assert node_report.section(dsnb.published("lambda_1cc_opt")) == []
    assert node_report.section(pd.DataFrame([a_group("a", 100)])) == []
    assert node_report.section(pd.DataFrame([a_group("a", 100), a_group("b", 100)]))
    assert node_report.section(pd.DataFrame([a_group("a+b", 100)]))
    failed = pd.DataFrame(
        [{**a_group("a+b", None, "failed"), "hosts": None}, a_group("c+d", None, "failed", cause="x")]
    )
    assert any("Failed: c, d (nodes2: 1 failed): x." in str(part) for part in node_report.section(failed))


def test_several_workloads_have_panels_of_their_own():
    rows = [a_group(host, rate, model=model, experiment=f"{model}_nodes1") for model in ("gpt2", "opt-125m")
            for host, rate in alone(100, 99, 101, 80)]  # fmt: skip
    table = node_groups.groups(pd.DataFrame(rows))
    assert list(table["workload"].unique()) == ["gpt2", "opt-125m"]
    assert list(slow_nodes.suspects(table)["hosts"]) == ["d"]
    titles = [axis.get_title(loc="left") for axis in groups_plots.spread(table).figure.axes]
    assert titles == ["gpt2", "opt-125m"]


def test_in_what_the_nodes_differ(tmp_path):
    made_up.write_groups(tmp_path / "s", HOSTS[:6], sizes=(1,))
    for number, path in enumerate(sorted(tmp_path.rglob("nodes.json"))):
        record = records.read_json(path)
        environment = record["nodes"][0]["environment"]
        environment["memory_gib"] = 2000 + number / 50
        if number == 4:
            environment |= {"driver": "535.1", "gpus": [{"name": "NVIDIA H200", "memory_gib": 140}] * 7}
        records.write_json(path, {**record, "differences": ["clocks: 2 s apart", "driver: told already"]})
    assert nodes.differences(dsnb.load_runs(tmp_path)) == [
        f"gpus: 8 x NVIDIA H200 140 GiB on 5 nodes, 7 x NVIDIA H200 140 GiB on {HOSTS[4]}",
        f"driver: 570.1 on 5 nodes, 535.1 on {HOSTS[4]}",
        "clocks: 2 s apart",
    ]


def test_one_number_on_two_hosts_is_two_gpus(cluster):
    rows = [
        {"t_s": second + late, "host": host, "gpu": gpu, "util_pct": busy, "memory_used_gib": 1 + gpu, "power_w": 100}
        for host, late, busy, seconds in (("a", 0.0, 100, 8), ("b", 0.1, 40, 4))
        for gpu in (0, 1) for second in range(seconds)
    ]  # fmt: skip
    worker = {"timed_from_s": 0, "timed_to_s": 100, "ended_s": 100}
    figures = gpu_figures(rows, worker, gpus=4)
    assert figures["gpu_util_pct"] == 70  # over GPUs; over samples it would be 80
    assert figures["device_memory_gib"] == 2
    means = single_runs.mean_over_gpus(pd.DataFrame(rows, columns=GPU_COLUMNS))
    assert list(means["util_pct"]) == [70] * 4 + [100] * 4
    runs = dsnb.load_runs(cluster)
    pair = int(np.flatnonzero(runs["nodes"] == 2)[0])
    assert single_runs.load(read(runs), pair)["gpus"] == 16
    samples = dsnb.runs.load.load_gpu(runs["run_dir"][pair])
    assert list(samples.columns) == GPU_COLUMNS
    assert samples["host"].nunique() == 2


def test_samples_of_one_gpu_are_as_they_are():
    rows = pd.DataFrame([{"t_s": t_s, "gpu": 0, "util_pct": t_s} for t_s in (0.25, 0.5, 0.76)], columns=GPU_COLUMNS)
    assert list(single_runs.mean_over_gpus(rows)["t_s"]) == [0.25, 0.5, 0.76]


def test_skew_by_hand():
    times_s = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.5, 1.0, 4.0]])
    means_s = pytest.approx([1, 4 / 3, 6.5 / 3])
    assert skew.compare(times_s) == {"skew": 1.0, "slowest": 2, "means_s": means_s}
    two = skew.compare(torch.tensor([[1.0], [3.0]]))
    assert (two["skew"], two["slowest"]) == (0.5, 1)  # the median of two is their mean
    nothing = {"skew": None, "slowest": None, "means_s": None}
    assert skew.compare(torch.tensor([[1.0, 2.0]])) == skew.compare(torch.empty(2, 0)) == nothing


@pytest.mark.alone
def test_a_rank_that_sleeps_longer_is_seen(run_small, tmp_path):
    """0.2 s and 0.6 s a step: 0.6 / 0.4 - 1."""
    result, run = run_small(worker="tests.workers.straggler", gpus=2, steps=5, warmup_steps=0)
    assert result.status == "ok", result.message()
    record = records.read_json(run.worker)
    assert record["slowest_rank"] == 1
    assert record["rank_step_s"] == pytest.approx([0.2, 0.6], rel=0.15)
    assert record["step_skew"] == pytest.approx(0.5, abs=0.08)
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert row["step_skew"] == record["step_skew"]


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


def test_one_rank_and_a_pipeline_have_no_such_skew(run_small):
    names = ("step_skew", "forward_skew", "slowest_rank", "rank_step_s", "rank_forward_s")
    _, run = run_small()
    assert [records.read_json(run.worker)[name] for name in names] == [None] * 5
    _, run = run_small(gpus=2, pipeline_parallel=2, grad_accum=2)
    record = records.read_json(run.worker)
    assert [record[name] is None for name in names] == [False, True, False, False, True]


def test_the_command_line_prints_groups_and_suspects(cluster, tmp_path):
    done = CliRunner().invoke(app, ["summary", "--groups", str(cluster), "--format", "json"])
    assert len(json.loads(done.stdout)) == 127
    assert f"Suspect: {SLOW}, " in done.stderr
    done = CliRunner().invoke(app, ["summary", "--groups", str(cluster)])
    assert "off median (%)" in done.stdout
    assert f"Suspect: {SLOW}, " in done.stdout
    made_up.write_folders(made_up.runs(1), tmp_path / "alone", steps=6)
    done = CliRunner().invoke(app, ["summary", "--groups", str(tmp_path)])
    assert str(done.exception) == (
        "no run used a hostfile, so there are no groups of nodes to compare: choose the folder of a sweep that did"
    )


def test_the_time_to_read_a_log_grows_with_its_length(tmp_path):
    """A log of 64 nodes has four times the lines of one of 16: about 8 MB."""
    spent_s = {}
    for count in (16, 64):
        path = tmp_path / f"pdsh{count}.log"
        path.write_text(collected_logs.through_pdsh(count, noise=10))
        began_s = time.process_time()
        row = dsnb.load_runs(path).iloc[0]
        spent_s[count] = time.process_time() - began_s
        assert (row["status"], row["nodes"], row["gpus"], row["samples_per_s"]) == ("ok", count, 8 * count, 1156.8893)
    assert spent_s[64] < 8 * spent_s[16]


def test_a_small_log_of_64_nodes_interleaved(tmp_path):
    """Every line 64 times, each host's under its name, as pdsh passes them on: one run, told once."""
    world = ", ".join(f"'{host}': [0, 1, 2, 3, 4, 5, 6, 7]" for host in HOSTS)
    text = re.sub(r"\{'n1'.*\}", f"{{{world}}}", foreign_logs.chat()).replace("nnodes=2", "nnodes=64")
    text = text.replace("dist_world_size=8", "dist_world_size=512").replace("  world_size ................... 8", "")
    text = text.replace("train_batch_size ............. 64", "train_batch_size ............. 4096")
    of_rank_0 = ("[Rank 0]", "Throughput", "Execution", "cmd = ", "config.py", "timer.py", "*****")
    lines = [f"{host}: {line}" for line in text.splitlines(keepends=True)
             for host in (HOSTS[:1] if any(words in line for words in of_rank_0) else HOSTS)]  # fmt: skip
    (tmp_path / "a.log").write_text("".join(lines))
    runs = dsnb.load_runs(tmp_path / "a.log")
    assert len(runs) == 1
    row = runs.iloc[0]
    assert (row["nodes"], row["gpus"], row["global_batch_size"], row["samples_per_s"]) == (64, 512, 4096, 640.0)
    assert not math.isnan(row["tokens_per_s"])
