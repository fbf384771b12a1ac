#!/usr/bin/env bash
# The tests of other trainers, each in an environment of its own, since they need other versions of what we need.
#
#     .ci/engines.sh                  # all: ten minutes on two cores
#     .ci/engines.sh verl skyrl       # those given: verl, skyrl, ms_swift
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- verl skyrl ms_swift
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
for engine in "$@"; do
    venv=".venv-$engine"
    rm -rf "$venv"
    python=python3
    if [ "$engine" = skyrl ]; then  # its settings need typing.TypedDict of Python 3.12
        beside=$(pyenv prefix 3.12 2>/dev/null || true)  # where pyenv has it beside its default
        for python in python3.12 python3.13 "$beside/bin/python3" none; do
            "$python" -c "import venv" 2>/dev/null && break
        done
        [ "$python" != none ] || { echo "skyrl: no Python 3.12 or 3.13 here, so its tests are skipped"; continue; }
    fi
    "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
    # first of all the CPU build of torch, so that nothing pulls in another
    "${pip[@]}" 'torch==2.13.0'
    case "$engine" in
        verl)  # it imports the last three wherever it trains, and does not require them
            "${pip[@]}" -e '.[verl]' pytest hypothesis cachetools fastapi uvicorn ;;
        skyrl)  # what its losses import: the extras of skyrl are built for GPUs
            "${pip[@]}" skyrl==0.3.0 skyrl-gym==0.4.0 ray==2.56.0 jaxtyping loguru omegaconf hydra-core==1.3.2 \
                tensordict pytest ;;
        ms_swift)  # msgspec is missing among its requirements
            "${pip[@]}" ms-swift==4.6.0 msgspec pytest ;;
    esac
    [ "$engine" = verl ] || "${pip[@]}" --no-deps -e .  # trl_credit.credit needs torch alone
    conftest=()
    [ "$engine" = verl ] || conftest=(--noconftest)  # ours is for TRL
    "$venv/bin/python" -m pytest "${conftest[@]}" tests/engines/test_"$engine"*.py
    rm -rf "$venv"
done
