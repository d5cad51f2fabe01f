#!/bin/sh
# Check types and style of the explorer's scripts. Prints a notice instead if node is not installed.
set -eu
cd "$(dirname "$0")"
tools=node_modules/.package-lock.json
if ! command -v npm >/dev/null; then
    echo "The explorer's scripts were not checked: node is not installed." >&2
    exit 0
fi
if [ ! -e "$tools" ] || [ package-lock.json -nt "$tools" ]; then
    if ! npm install --no-save --silent --ignore-scripts >/dev/null 2>&1; then
        echo "The explorer's scripts were not checked: npm cannot install the tools." >&2
        exit 0
    fi
    touch "$tools"
fi
page=../../kgserve/server/http/static/explorer
node_modules/.bin/biome lint --error-on-warnings --log-level=error "$page" "$PWD"
# Type declarations replace the vendored modules, which are not checked.
copy=../../build/explorer
rm -rf "$copy"
mkdir -p "$copy"
cp -R "$page"/. "$copy"
rm -rf "$copy/vendor"
cp -R types/. "$copy"
node_modules/.bin/tsc -p "$copy"
