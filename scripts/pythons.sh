#!/bin/sh
# Run basic tests with every other Python version on this machine: those on PATH, and those of pyenv. Versions that are
# missing, or for which a dependency cannot be installed, are skipped.
set -u
own=$1
parts="tests/cli/test_health.py tests/cli/test_stores.py"
failed=""
for version in 3.11 3.12 3.13 3.14; do
    [ "$("$own" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$version" ] && continue
    python=""
    for each in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        "$each" -c 'import ensurepip, venv' >/dev/null 2>&1 && python=$each && break
    done
    if [ -z "$python" ]; then
        echo "Python $version: not installed"
        continue
    fi
    place=build/pythons/$version
    if [ ! -e "$place/.ready" ]; then
        rm -rf "$place"
        if ! "$python" -m venv "$place" || ! "$place/bin/python" -m pip --quiet --disable-pip-version-check install \
            --constraint constraints.txt --editable . pytest pytest-timeout pytest-xdist hypothesis trustme >"$place.log" 2>&1; then
            echo "Python $version: setup failed; see $place.log"
            continue
        fi
        touch "$place/.ready"
    fi
    # shellcheck disable=SC2086
    if "$place/bin/python" -m pytest -q -n 2 -p no:cacheprovider $parts; then
        echo "Python $version: passed"
    else
        failed="$failed $version"
    fi
done
[ -z "$failed" ] || { echo "Failed with Python$failed" >&2; exit 1; }
