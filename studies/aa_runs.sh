#!/bin/bash
# A/A runs on a card: unchanged kernels against themselves, and `gpuenergy ab` of pairs whose difference is known.
#
#   OUT=results bash studies/aa_runs.sh [runs|ab|all] [SECONDS]        (default: all 270)
#
# The kernels are in studies/aa. It needs neither TVM nor git. Run it in the root of a checkout.
#
#   runs  8 kernels again and again, each run a process of its own and a report, on every GPU at once, until SECONDS are
#         nearly over.
#   ab    `gpuenergy ab` of eight kernels on every GPU at once, each with another comment (SAME), and with 1 % more work,
#         which is 2 % in EDP (WORSE at 1 %). AB_K limits it (AB_K=copy), AB_ARGS replaces its options.
#   all   `runs` for 60 % of SECONDS, then `ab` for what is left.
#
# Writes $OUT/aa.tar.gz (aa-<gpu>-<i>.json, ab-<gpu>.json, *.log) and prints a line for each run. Then:
#   mkdir s1; tar xzf results/aa.tar.gz -C s1; python studies/aa_rate.py s*/aa-*.json
# To rehearse: AA_DEVICE=emulated AA_SMALL=1 AA_K="case4 or softmax" OUT=/tmp/o bash studies/aa_runs.sh all 120
set -u
began=$(date +%s)
what=${1:-all} seconds=${2:-270}
python=${PYTHON:-python3}
OUT=${OUT:-$PWD/aa-out}; mkdir -p "$OUT"
root=$PWD
work=$(mktemp -d)
export GPUENERGY_CAP_WRITES=deny PYTHONUNBUFFERED=1
export GPUENERGY_CACHE=$work/cache GPUENERGY_STATE=$work/state
if ls .whl/*.whl >/dev/null 2>&1; then
  $python -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" .whl/*.whl
  export PYTHONPATH=$work/site${PYTHONPATH:+:$PYTHONPATH}
fi
if ! $python -P -c 'import importlib.metadata as m; m.version("pytest-gpuenergy")' 2>/dev/null; then
  # Not installed here: the checkout itself, with the entry point by which pytest finds the plugin.
  info=$work/self/pytest_gpuenergy-0.1.0.dist-info; mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: pytest-gpuenergy\nVersion: 0.1.0\n' >"$info/METADATA"
  printf '[pytest11]\ngpuenergy = pytest_gpuenergy.plugin\n' >"$info/entry_points.txt"
  export PYTHONPATH=$root:$work/self${PYTHONPATH:+:$PYTHONPATH}
fi
cp -r "$root/studies/aa" "$work/aa"
tar xJf "$work/aa/kernels.tar.xz" -C "$work/aa"
mv "$work/aa/runs.py" "$work/aa/test_aa.py" # here, so that pytest does not collect it in the checkout
mv "$work/aa/ab" "$work/pairs"
left() { echo $((began + seconds - $(date +%s))); }
if [ -n "${AA_DEVICE:-}" ]; then gpus=$AA_DEVICE
else gpus=$(nvidia-smi --query-gpu=index --format=csv,noheader); fi
nvidia-smi --query-gpu=index,name,uuid,temperature.gpu,power.draw,clocks.sm --format=csv,noheader 2>/dev/null

runs_on() { # GPU SECONDS: reports until the time is over
  local gpu=$1 until=$(($(date +%s) + $2)) longest=0 i=0 name
  while :; do
    i=$((i + 1)); name=aa-${gpu//[^a-z0-9]/}-$i
    local t0=$(date +%s)
    [ $((until - t0)) -lt $longest ] && break
    (cd "$work/aa" && timeout $((until - t0 > 5 ? until - t0 : 5)) $python -P -m pytest -q -p no:cacheprovider \
      ${AA_K:+-k "$AA_K"} --gpu-device "$gpu" --powercap current --gpuenergy-durations \
      --gpuenergy-json "$work/$name.json") >"$work/$name.log" 2>&1
    local rc=$? t1=$(date +%s)
    echo "GPU $gpu run $i: exit $rc, $((t1 - t0)) s: $(grep -E 'passed|failed|error' "$work/$name.log" | tail -1)"
    [ $rc -eq 124 ] && mv "$work/$name.json" "$work/cut-$name.json" 2>/dev/null
    [ $rc -ne 0 ] && tail -15 "$work/$name.log"
    [ $i -eq 1 ] && longest=$(((t1 - t0) * 3 / 4)) || longest=$((t1 - t0 + 2))
    [ "$(date +%s)" -ge "$until" ] && break
  done
}
runs() {
  local gpu
  for gpu in $gpus; do runs_on "$gpu" "$1" & done
  wait
}
ab_on() { # GPU SECONDS
  local gpu=$1 name=ab-${1//[^a-z0-9]/}
  local folder=$work/pairs-$name began=$SECONDS
  mkdir -p "$folder/one" "$folder/two"
  cp "$work/pairs/pairs.py" "$folder/one/test_pairs.py"
  cp "$work/pairs/pyproject.toml" "$folder/one/"
  cp "$work/pairs/pyproject.toml" "$folder/two/"
  cp "$work/pairs/without_git.py" "$folder/"
  sed 's/^MORE = 0/MORE = 1/; s/^NOTE = "one"/NOTE = "two"/' "$work/pairs/pairs.py" >"$folder/two/test_pairs.py"
  (cd "$folder" && timeout -s INT "$2" $python -P without_git.py one two test_pairs.py \
    ${AB_K:+-k "$AB_K"} --gpu-device "$gpu" --powercap current \
    ${AB_ARGS:---fail edp:1%} --json "$work/$name.json") >"$work/$name.log" 2>&1
  echo "GPU $gpu ab: exit $?, $((SECONDS - began)) s"
  tail -25 "$work/$name.log"
}
ab() {
  local gpu
  for gpu in $gpus; do ab_on "$gpu" "$1" & done
  wait
}
case $what in
  runs) runs $((seconds - 5)) ;;
  ab) ab $((seconds - 5)) ;;
  all) runs $((seconds * 6 / 10)); ab $(($(left) - 5)) ;;
  *) echo "aa-card.sh: runs, ab or all" >&2; exit 2 ;;
esac
(cd "$work" && tar czf "$OUT/aa.tar.gz" $(ls | grep -E '^(aa|ab|cut).*\.(json|log)$'))
ls -la "$OUT"
echo "whole: $(($(date +%s) - began)) s"
rm -rf "$work"
exit 0
