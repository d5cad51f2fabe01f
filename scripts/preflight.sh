#!/bin/sh
# Report what this machine lacks for setup, in one sentence. Usage: preflight.sh PYTHON [extras]
# With `extras`: print the extra `hnswlib,` if this machine can compile it.
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

# Only hnswlib needs a compiler, and it is optional: without it, all vectors are compared.
if "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    for compiler in "${CXX:-}" c++ g++ clang++; do
        if [ -n "$compiler" ] && command -v "${compiler%% *}" >/dev/null 2>&1; then
            [ "$mode" = extras ] && echo hnswlib,
            exit 0
        fi
    done
fi
[ "$mode" = extras ] && exit 0
echo "kgserve: continuing without hnswlib, so semantic search will be slow above 50,000 nodes. To use hnswlib, install a C++ compiler and Python's headers (Debian: apt-get install g++ python3-dev; Fedora: dnf install gcc-c++ python3-devel; Arch: pacman -S gcc; Alpine: apk add g++ python3-dev; macOS: xcode-select --install), then run: make clean setup." >&2
