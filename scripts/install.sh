#!/bin/sh
# Install this checkout and the packages of constraints.txt into an environment. Usage: install.sh PYTHON EXTRAS
# Uses uv, which takes a tenth of pip's time, or pip if uv is not available, fails, or would ignore pip's index settings.
set -eu
python=$1
set -- pip --constraint constraints.txt --editable ".[$2]"

# New environments have no pip, which takes seconds to install. The pip of the base interpreter installs into them.
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
    # Offline first: with an index that forbids caching, uv would compile hnswlib again.
    "$uv" pip install --quiet --offline --python "$python" "$@" 2>/dev/null && exit
    "$uv" pip install --python "$python" "$@" && exit
    echo "uv has failed; installing with pip …" >&2
fi
pip install "$@"
