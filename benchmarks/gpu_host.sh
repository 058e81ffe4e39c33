#!/usr/bin/env bash
# Run all that needs a GPU, resumable: the GPU tests, then a sweep, then pack its results.
#   usage: benchmarks/gpu_host.sh PARAMS_FILE RESULTS_FOLDER SECONDS [sweep options ...]
# It stops the sweep after SECONDS; start it again to continue.
set -uo pipefail
params=$1 results=$2 seconds=$3
shift 3
mkdir -p "$results"
python3 -m dsnb doctor 2>&1 | tee "$results/doctor.txt"
[ -n "${SKIP_TESTS:-}" ] || python3 -m pytest -m gpu -q -rA --timeout=400 tests/test_gpu.py 2>&1 | tail -n 60 | tee "$results/gpu_tests.txt"
timeout --signal=INT "$seconds" python3 -m dsnb sweep "$params" "$@" 2>&1 | tee "$results/sweep.txt"
name=$(python3 -c 'import sys, yaml; print(yaml.safe_load(open(sys.argv[1]))["name"])' "$params")
python3 -m dsnb summary "outputs/$name" --timing 2>&1 | tee "$results/timing.txt"
tar czf "$results/$name.tar.gz" -C outputs "$name"
