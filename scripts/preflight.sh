#!/bin/sh
# Report in one sentence what this machine lacks for setup, if anything. Usage: preflight.sh PYTHON [extras]
# With `extras`, print the extra that the compiler of this machine can build, with a comma, instead.
python=${1:-python3}
mode=${2:-report}

lacks() {
    echo "kgserve: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    lacks "$python was not found; install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    lacks "Python 3.11 or newer is needed, but $python is $("$python" -V 2>&1); name another: make setup PYTHON=/path/to/python3."

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    lacks "$python cannot create virtual environments; install its venv module (Debian: apt-get install python3-venv; Fedora, Arch and Alpine have it in python3)."

# hnswlib alone is compiled. Without it vectors are compared one by one, so set-up goes on.
if "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    for compiler in "${CXX:-}" c++ g++ clang++; do
        if [ -n "$compiler" ] && command -v "${compiler%% *}" >/dev/null 2>&1; then
            [ "$mode" = extras ] && echo hnswlib,
            exit 0
        fi
    done
fi
[ "$mode" = extras ] && exit 0
echo "kgserve: going on without hnswlib, so search by meaning gets slow from 50,000 nodes on; for it, install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev; Fedora: dnf install gcc-c++ python3-devel; Arch: pacman -S gcc; Alpine: apk add g++ python3-dev; macOS: xcode-select --install), then run: make clean setup." >&2
