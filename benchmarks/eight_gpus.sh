#!/usr/bin/env bash
# Measure `params/eight` on a host with eight GPUs, file by file, then its collectives; a further call goes on.
#   usage: benchmarks/eight_gpus.sh OUTPUT SECONDS
# Runs that OUTPUT/finished.txt lists were made before. OUTPUT/eight.tar.gz has everything.
set -uo pipefail
output=$1
end=$((SECONDS + $2))
mkdir -p "$output/runs"
[ -f "$output/finished.txt" ] && cp "$output/finished.txt" "$output/runs/"
python3 -m dsnb doctor >"$output/doctor.txt" 2>&1
for file in benchmarks/params/eight/*.yaml; do
    left=$((end - SECONDS))
    [ "$left" -gt 0 ] && python3 -m benchmarks.h200 "$output/runs" "$left" "$file" 2>&1 | tee -a "$output/log.txt"
done
for gpus in 2 4 8; do
    timeout 60 python3 -m dsnb bandwidth --set gpus="$gpus" --output "$output/bandwidth_$gpus" >>"$output/log.txt" 2>&1
done
tar czf "$output/eight.tar.gz" --exclude='*.ipynb' -C "$output" .
