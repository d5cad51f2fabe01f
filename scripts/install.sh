#!/bin/sh
# Install this checkout and the packages of constraints.txt into an environment. Usage: install.sh PYTHON EXTRAS
# uv needs a tenth of pip's time. pip does it where uv cannot be had, fails, or would not use the index set for pip.
set -eu
python=$1
set -- --constraint constraints.txt --editable ".[$2]"

pip() {
    "$python" -m pip --disable-pip-version-check "$@"
}

if ! pip config list | grep -Eq '\.(index-url|no-index)='; then
    uv=$(command -v uv) || {
        uv=$(dirname "$python")/uv
        [ -x "$uv" ] || pip --quiet install --constraint constraints.txt uv || true
    }
    # Without a network first: a package index that forbids caching would have hnswlib compiled again.
    "$uv" pip install --quiet --offline --python "$python" "$@" 2>/dev/null && exit
    "$uv" pip install --python "$python" "$@" && exit
    echo "Installing with pip, as uv did not …" >&2
fi
pip install "$@"
