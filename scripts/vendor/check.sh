#!/bin/sh
# Types and style of the explorer's scripts. Where node is not at hand, it says that they were not checked.
set -eu
cd "$(dirname "$0")"
tools=node_modules/.package-lock.json
if ! command -v npm >/dev/null; then
    echo "The explorer's scripts were not checked: there is no node here." >&2
    exit 0
fi
if [ ! -e "$tools" ] || [ package-lock.json -nt "$tools" ]; then
    if ! npm install --no-save --silent --ignore-scripts >/dev/null 2>&1; then
        echo "The explorer's scripts were not checked: npm cannot fetch what checks them." >&2
        exit 0
    fi
    touch "$tools"
fi
page=../../kgserve/server/http/static/explorer
node_modules/.bin/biome lint --error-on-warnings --log-level=error "$page" "$PWD"
# Declarations stand in for the vendored modules, which are checked by nobody.
copy=../../build/explorer
rm -rf "$copy"
mkdir -p "$copy"
cp -R "$page"/. "$copy"
rm -rf "$copy/vendor"
cp -R types/. "$copy"
node_modules/.bin/tsc -p "$copy"
