#!/usr/bin/env bash
# Everything that only a GPU can show, within 8 minutes on one card: benchmarks/gpu.sh --help
#
#     benchmarks/gpu.sh                        # all parts, written to benchmarks/results/<date>-gpu-<card>.md
#     benchmarks/gpu.sh correctness speed      # these parts
#     benchmarks/gpu.sh --wheels FOLDER        # without a network: first installs the folder's wheels beside what is there
#     benchmarks/gpu.sh --dry_run              # tiny sizes on a CPU: does the script run?
set -euo pipefail
arguments=() wheels=""
while [ $# -gt 0 ]; do
    case "$1" in
        --wheels) wheels="${2:?error: --wheels needs a folder}"; shift 2 ;;
        --wheels=*) wheels="${1#*=}"; shift ;;
        *) arguments+=("$1"); shift ;;
    esac
done
[ -z "$wheels" ] || wheels="$(cd "$wheels" && pwd)"
cd "$(dirname "$0")/.."
python="$(command -v python || command -v python3)"
visible="${CUDA_VISIBLE_DEVICES-0}"
export CUDA_VISIBLE_DEVICES="${visible%%,*}"  # TRL refuses several GPUs in one process
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_LOGGING_LEVEL="${VLLM_LOGGING_LEVEL:-ERROR}"
if [ -n "$wheels" ]; then  # into a folder of their own, which goes again: nothing of the machine's changes
    site="$(mktemp -d)"
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl
    export PYTHONPATH="$site:$PYTHONPATH"
fi
"$python" benchmarks/gpu "${arguments[@]}"
