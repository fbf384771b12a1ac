#!/usr/bin/env bash
# Whether a tag may be published:  .ci/check_tag.sh v0.2.0
set -euo pipefail
cd "$(dirname "$0")/.."
tag="$1"
refuse() { echo "error: $1" >&2; exit 1; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
[ "$tag" = "v$version" ] || refuse "the tag is $tag, and the version in pyproject.toml is $version"
grep -q "^## \[$version\] - " CHANGELOG.md || refuse "CHANGELOG.md has no section [$version]"
grep -q "^version: $version\$" CITATION.cff || refuse "CITATION.cff has another version"
grep -q '^\[project\.urls\]' pyproject.toml || refuse "pyproject.toml has no [project.urls] with the address of the project"
