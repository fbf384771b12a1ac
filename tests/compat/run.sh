#!/usr/bin/env bash
# Runs the tests that touch TRL against several of its releases, each in its own environment.
#
#     tests/compat/run.sh                    # the floor, one in the middle, and the newest that can be installed
#     tests/compat/run.sh 1.12.0 newest      # the releases given
#     tests/compat/run.sh 1.12.0/5.2.0       # that release with a release of transformers
#     tests/compat/run.sh --record 1.12.0    # the versions of what passes go to versions.json and docs/not_supported.md
#
# The environments under .venv-compat/ share the packages of the Python that runs this script, except TRL (and
# transformers with what it needs): run it in an environment that holds this package and its dependencies.
set -euo pipefail
cd "$(dirname "$0")/../.."
record=
[ "${1:-}" != --record ] || { record=yes; shift; }
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(1.12.0 1.14.0 newest)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
failed=()
for release in "${releases[@]}"; do
    venv=".venv-compat/${release//\//-}"
    rm -rf "$venv"
    python -m venv --without-pip "$venv"
    # the shared packages come after TRL in the new environment's path
    site=$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    target=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    requirement="trl==${release%%/*}"
    [ "${release%%/*}" = newest ] && requirement='trl>=1.12,!=1.15.0,<2'
    python -m pip install -q --no-deps --upgrade --target "$target" "$requirement"
    # TRL 1.12 and 1.13 import it without requiring it
    "$venv/bin/python" -c 'import requests' 2>/dev/null || python -m pip install -q --upgrade --target "$target" requests
    if [[ "$release" == */* ]]; then
        python -m pip install -q --upgrade --target "$target" "transformers==${release#*/}"  # and what it needs
    fi
    echo "$site" > "$target/zz_parent.pth"
    echo "$PWD" >> "$target/zz_parent.pth"
    # each TRL needs another vLLM: hide it
    echo 'import sys; sys.modules["vllm"] = None' >> "$target/zz_parent.pth"
    echo "== trl $("$venv/bin/python" -c 'import trl; print(trl.__version__, "from", trl.__file__)')"
    if "$venv/bin/python" -m pytest -q -x -n 2 --dist loadfile tests/config/test_config.py \
        tests/credit/test_golden.py tests/loss/test_contract.py tests/loss/test_normalizer.py tests/loss/test_policy_loss.py \
        tests/passes/test_padding.py tests/passes/test_shared_prefix.py \
        tests/passes/test_zero_advantage.py tests/rollouts/test_segment_*.py tests/rollouts/test_group*.py \
        tests/loss/test_turn_loss.py tests/rollouts/test_turn_training.py tests/trainer/test_rewards_along_responses.py \
        tests/trainer/test_environment*.py tests/trainer/test_agent_training.py \
        tests/trainer/test_probes.py tests/trainer/test_trainer.py; then
        [ -z "$record" ] || "$venv/bin/python" tests/compat/versions.py record compat
    else
        failed+=("$release")
    fi
done
rm -rf .venv-compat
[ ${#failed[@]} -eq 0 ] || { echo "failed with trl ${failed[*]}"; exit 1; }
