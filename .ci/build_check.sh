#!/usr/bin/env bash
# Builds sdist and wheel into dist/, as they are published, checks both, and trains from the wheel in a clean environment.
# It takes tracked and new files alone, so that what earlier builds left behind cannot help.
#
#     .ci/build_check.sh            # all of it; a few minutes, most of them for pip
#     .ci/build_check.sh --shared   # with the dependencies of the Python that runs it, in place of new ones
#     .ci/build_check.sh --built    # without the environment and the training
set -euo pipefail
cd "$(dirname "$0")/.."
root="$PWD"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TOKENIZERS_PARALLELISM=false
quietly() { "$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }; }

mkdir "$work/tree"
if ! git ls-files -z --cached --others --exclude-standard > "$work/files" 2> /dev/null; then  # not a checkout
    find . -type f -not -path './.*' -not -path './build/*' -not -path './dist/*' -not -path '*/__pycache__/*' -print0 > "$work/files"
fi
tar -cf "$work/tree.tar" --null --ignore-failed-read -T "$work/files" 2> /dev/null  # a deleted file is still listed
tar -xf "$work/tree.tar" -C "$work/tree"

python3 -m venv "$work/tools"
quietly "$work/tools/bin/pip" install build twine
rm -rf dist
# the sdist, and from it the wheel; then a wheel from the tree
quietly "$work/tools/bin/python" -m build --outdir "$root/dist" "$work/tree"
quietly "$work/tools/bin/python" -m build --wheel --outdir "$work/from_tree" "$work/tree"
"$work/tools/bin/twine" check --strict dist/*
python3 .ci/compare_builds.py "$work/tree" dist/*.tar.gz dist/*.whl "$work"/from_tree/*.whl
[ "${1:-}" != --built ] || exit 0

# the wheel, far from the checkout
python3 -m venv "$work/clean"
if [ "${1:-}" = --shared ]; then
    quietly "$work/clean/bin/pip" install --no-deps dist/*.whl
    # behind the wheel in the path, and without the links of an editable install
    python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
        > "$(echo "$work"/clean/lib/python*/site-packages)/zz_shared.pth"
else
    quietly "$work/clean/bin/pip" install 'torch==2.13.0'  # first of all the CPU build, so that nothing pulls in another
    quietly "$work/clean/bin/pip" install dist/*.whl
fi
mkdir "$work/elsewhere" && cd "$work/elsewhere"
export PATH="$work/clean/bin:$PATH"
python -c 'import sys, trl_credit; assert trl_credit.__file__.startswith(sys.prefix), trl_credit.__file__'
trl-credit --version
trl-credit help > pages
trl-credit help segments > page && grep -m 1 '^# ' page
trl-credit recipes path s_trace/qwen3_4b_s_trace > recipe
trl-credit train --algo s_trace --max_steps 2 --logging_steps 1 --log_credit 1 --output_dir run
trl-credit view run
test -s run/credit_log/view.html -a -s run/model.safetensors -a -s run/README.md
echo "wheel and sdist are in dist/"
