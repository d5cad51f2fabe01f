#!/bin/sh
# Report in one sentence what this machine lacks for setup, if anything. Usage: preflight.sh PYTHON
python=${1:-python3}

lacks() {
    echo "kgserve: $1" >&2
    exit 1
}

command -v "$python" >/dev/null 2>&1 ||
    lacks "$python was not found; install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3."

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    lacks "Python 3.11 or newer is needed, but $python is $("$python" -V 2>&1); name another: make setup PYTHON=/path/to/python3."

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    lacks "$python cannot create virtual environments; install its venv module (on Debian: apt-get install python3-venv)."

"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    lacks "the headers of $python are needed to install some dependencies; install them (on Debian: apt-get install python3-dev)."

for compiler in "${CXX:-}" c++ g++ clang++; do
    [ -n "$compiler" ] && command -v "${compiler%% *}" >/dev/null 2>&1 && exit 0
done
lacks "a C++ compiler is needed to install some dependencies; install one (on Debian: apt-get install g++) or name one in CXX."
