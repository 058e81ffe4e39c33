#!/bin/bash
# On an offline host with two GPUs: bash benchmarks/versions_host.sh WHEELS OUT [options of benchmarks.versions_measure]
# WHEELS has a wheel of each version of DeepSpeed (DS_BUILD_OPS=0 pip wheel --no-deps --no-binary deepspeed deepspeed==VERSION)
# and what else the host lacks (hjson, pydantic and its parts). Repeat the call with --first-round to go on.
set -u
export PYTHONUNBUFFERED=1 TORCH_CUDA_ARCH_LIST=9.0 DS_SKIP_CUDA_CHECK=1
wheels=$1
out=$2
shift 2
pip="python3 -m pip install -q --no-index --no-deps --no-cache-dir"
if [ ! -d /tmp/site-versions ]; then
  for wheel in "$wheels"/deepspeed-*.whl; do
    version=$(basename "$wheel" | cut -d - -f 2)
    $pip --target "/tmp/ds-$version" "$wheel" &
  done
  $pip --target /tmp/site-versions $(ls "$wheels"/*.whl | grep -v /deepspeed-) &
  wait
fi
mkdir -p "$out"
export PYTHONPATH=/tmp/site-versions:$PWD
python3 -m benchmarks.versions_measure "$out" --logs /tmp/versions-logs "$@" 2>&1 | tee "$out/console.txt"
tar -czf "$out/logs.tgz" -C /tmp versions-logs
