#!/usr/bin/env bash
# The tests that touch TRL, against several of its releases, each in an environment of its own.
#
#     tests/compat/run.sh                    # the floor, one in the middle, and the newest that can be installed
#     tests/compat/run.sh 1.12.0 newest      # the releases given
#
# Environments are made under .venv-compat/ and see the packages of the Python that runs this script, so that only TRL is
# installed anew: use an environment in which this package and its dependencies are.
set -euo pipefail
cd "$(dirname "$0")/../.."
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(1.12.0 1.14.0 newest)
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
failed=()
for release in "${releases[@]}"; do
    venv=".venv-compat/$release"
    rm -rf "$venv"
    python -m venv --without-pip "$venv"
    # the packages of the environment that runs this, behind TRL in the path of the new one
    site=$(python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    target=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    requirement="trl==$release"
    [ "$release" = newest ] && requirement='trl>=1.12,!=1.15.0,<2'
    python -m pip install -q --no-deps --upgrade --target "$target" "$requirement"
    echo "$site" > "$target/zz_parent.pth"
    echo "$PWD" >> "$target/zz_parent.pth"
    # each TRL wants a vLLM of its own time: without any, it does without
    echo 'import sys; sys.modules["vllm"] = None' >> "$target/zz_parent.pth"
    echo "== trl $("$venv/bin/python" -c 'import trl; print(trl.__version__, "from", trl.__file__)')"
    "$venv/bin/python" -m pytest -q -x -n 2 --dist loadfile tests/test_contract.py tests/test_golden.py tests/test_config.py \
        tests/test_trainer.py tests/test_behavior_logps.py tests/test_segment_*.py \
        tests/test_prompt_average.py tests/test_padding.py tests/test_shared_prefix.py tests/test_without_credit.py || failed+=("$release")
done
rm -rf .venv-compat
[ ${#failed[@]} -eq 0 ] || { echo "failed with trl ${failed[*]}"; exit 1; }
