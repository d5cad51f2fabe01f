#!/bin/sh
# Write constraints.txt from a fresh environment with the newest versions that pyproject.toml allows.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check install uv
"$folder/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --extra dev --extra hnswlib --extra prepare \
    --no-header --no-annotate --no-emit-index-url --output-file "$folder/versions" pyproject.toml
{
    echo "# Exact versions of everything that set-up installs; \`make constraints\` rewrites this file."
    cat "$folder/versions"
} > constraints.txt
