"""Sentences about runs that waited for their host, with the medians of the same setting with CUDA graphs by hand."""

import pandas as pd

from dsnb.results.statistics.cpu_bound import cpu_bound_words


def test_a_cpu_bound_run_is_told_what_cuda_graphs_bring_to_the_same_setting():
    def run(compile_mode, rate, share, **settings):
        common = {"model": "gpt2", "zero_stage": 0, "gpu_name": "NVIDIA H200", "status": "ok"}
        return {
            **common,
            "compile": compile_mode,
            "tokens_per_s": rate,
            "cpu_bound": share,
            **settings,
        }

    rows = [
        run("off", 100.0, 0.58),
        run("off", 120.0, 0.6),  # the median of the setting is 110
        run("reduce-overhead", 374.0, 0.3),
        run("off", 110.0, 0.19),
        run("off", 100.0, 0.7, zero_stage=1),  # another setting
        run("off", None, None, status="oom"),
        run("reduce-overhead", 1000.0, 0.0, gpu_name="NVIDIA B200"),
        run("reduce-overhead", 1000.0, 0.0, status="nan"),
        run("off", 100.0, 1.0, zero_stage=3),  # cannot use graphs
        run("off", 100.0, 0.2, zero_stage=2),
        run("reduce-overhead", 108.0, 0.0, zero_stage=2),
        run("off", 100.0, 0.2, zero_stage=2, model="opt-125m"),
        run("reduce-overhead", 104.0, 0.0, zero_stage=2, model="opt-125m"),  # hardly faster
    ]
    both = "a larger micro-batch, or compile: reduce-overhead (CUDA graphs), may be faster"
    graphs = "compiled with CUDA graphs, the same setting is 3.4 times as fast"
    assert cpu_bound_words(pd.DataFrame(rows)) == {
        0: f"CPU-bound: up to 58 % of the step; {graphs}",
        1: f"CPU-bound: up to 60 % of the step; {graphs}",
        2: "CPU-bound: up to 30 % of the step; a larger micro-batch may be faster",
        4: f"CPU-bound: up to 70 % of the step; {both}",
        8: "CPU-bound: up to 100 % of the step; a larger micro-batch may be faster",
        9: "CPU-bound: up to 20 % of the step; compiled with CUDA graphs, the same setting is 1.1 times as fast",
        11: f"CPU-bound: up to 20 % of the step; {both}",
    }
    assert cpu_bound_words(pd.DataFrame(rows).drop(columns="cpu_bound")) == {}
