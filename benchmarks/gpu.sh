#!/usr/bin/env bash
# Everything that only a GPU can show, within 8 minutes on one card: benchmarks/gpu.sh --help
#
#     benchmarks/gpu.sh                        # all parts, written to benchmarks/results/<date>-gpu-<card>.md
#     benchmarks/gpu.sh correctness speed      # these parts
#     benchmarks/gpu.sh --dry_run              # tiny sizes on a CPU: does the script run?
set -euo pipefail
cd "$(dirname "$0")/.."
visible="${CUDA_VISIBLE_DEVICES-0}"
export CUDA_VISIBLE_DEVICES="${visible%%,*}"  # TRL refuses several GPUs in one process
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export VLLM_LOGGING_LEVEL="${VLLM_LOGGING_LEVEL:-ERROR}"
exec python benchmarks/gpu "$@"
