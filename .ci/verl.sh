#!/usr/bin/env bash
# The tests of the plug-in for verl, in an environment of its own, since verl needs other versions: .ci/verl.sh [FOLDER]
# It takes about four minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/.."
venv="${1:-.venv-verl}"
rm -rf "$venv"
python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
# first of all the CPU build of torch, so that nothing pulls in another
"${pip[@]}" 'torch==2.13.0'
# verl imports the last three wherever it is trained, and does not require them
"${pip[@]}" -e '.[verl]' pytest hypothesis cachetools fastapi uvicorn
OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false "$venv/bin/python" -m pytest -m verl tests/engines
rm -rf "$venv"
