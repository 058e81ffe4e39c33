#!/usr/bin/env bash
# Measure the collectives of a host with eight GPUs, then `params/eight`, file by file; a further call goes on.
#   usage: benchmarks/eight_gpus.sh WHEELS OUTPUT SECONDS [FINISHED]
# WHEELS has what the host lacks. After SECONDS no run is started any more: one that then runs takes two minutes at most.
# OUTPUT/eight.tar.gz has every run, also if the call is ended; FINISHED is the finished.txt of a former call.
set -uo pipefail
wheels=$1
output=$2
end=$((SECONDS + $3))
finished=${4:-}
mkdir -p "$output" /tmp/eight
[ -n "$finished" ] && cp "$finished" /tmp/eight/finished.txt
[ -d /tmp/site ] || python3 -m pip install -q --no-index --no-deps --target /tmp/site "$wheels"/*.whl
export PYTHONPATH=/tmp/site:$PWD TORCH_CUDA_ARCH_LIST=9.0

pack() {
    (cd /tmp/eight && ls -d */*/*/result.json 2>/dev/null | xargs -rn 1 dirname >>finished.txt)
    cp /tmp/eight/finished.txt "$output/" 2>/dev/null
    tar czf "$output/eight.tar.gz" --exclude='*.ipynb' -C /tmp eight
}

python3 -m dsnb doctor >"$output/doctor.txt" 2>&1
if [ -z "$finished" ]; then
    for gpus in 2 4 8; do
        timeout 60 python3 -m dsnb bandwidth --set gpus="$gpus" --output "/tmp/eight/bandwidth_$gpus" >>"$output/log.txt" 2>&1
    done
fi
for file in benchmarks/params/eight/*.yaml; do
    left=$((end - SECONDS))
    [ "$left" -gt 0 ] && python3 -m benchmarks.h200 /tmp/eight "$left" "$file" 2>&1 | tee -a "$output/log.txt"
    pack
done
