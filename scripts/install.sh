#!/bin/sh
# Install this checkout and the packages of constraints.txt into an environment. Usage: install.sh PYTHON EXTRAS
# uv needs a tenth of pip's time. pip does it where uv cannot be had, fails, or would not use the index set for pip.
set -eu
python=$1
set -- pip --constraint constraints.txt --editable ".[$2]"

# A new environment has no pip, because installing one first takes seconds: that of its base can install into it.
if ! "$python" -c 'import pip' 2>/dev/null; then
    base=$("$python" -c 'import sys; print(sys._base_executable)')
    new_enough='import pip, sys; sys.exit([*map(int, pip.__version__.split(".")[:2])] < [22, 3])'
    "$base" -c "$new_enough" 2>/dev/null || { "$python" -m ensurepip >/dev/null && base=; }
fi

pip() {
    if [ -n "${base:-}" ]; then
        "$base" -m pip --disable-pip-version-check --python "$python" "$@"
    else
        "$python" -m pip --disable-pip-version-check "$@"
    fi
}

if ! pip config list | grep -Eq '\.(index-url|no-index)='; then
    uv=$(command -v uv) || {
        uv=$(dirname "$python")/uv
        [ -x "$uv" ] || pip --quiet install --no-compile --constraint constraints.txt uv || true
    }
    # Without a network first: a package index that forbids caching would have hnswlib compiled again.
    "$uv" pip install --quiet --offline --python "$python" "$@" 2>/dev/null && exit
    "$uv" pip install --python "$python" "$@" && exit
    echo "Installing with pip, as uv did not …" >&2
fi
pip install "$@"
