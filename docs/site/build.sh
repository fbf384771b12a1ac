#!/usr/bin/env bash
# Builds the site into build/site:  pip install -r docs/site/requirements.txt && docs/site/build.sh [zensical|mkdocs]
set -euo pipefail
cd "$(dirname "$0")/../.."
python docs/site/stage.py
PYTHONPATH="docs/site${PYTHONPATH:+:$PYTHONPATH}" "${1:-zensical}" build --strict
