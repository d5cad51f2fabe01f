#!/bin/sh
# Make the hnswlib extension of an environment run on any x86-64 processor: rebuild it if it was compiled for this
# machine's processor, as by an earlier setup or a wheel in pip's cache. Usage: portable.sh PYTHON
set -eu
python=$1
extension=$("$python" -c 'import importlib.util as i; found = i.find_spec("hnswlib"); print(found.origin if found else "")')
[ -n "$extension" ] || exit 0
command -v objdump >/dev/null || exit 0
# AVX registers, which SSE does not have.
objdump --disassemble --no-show-raw-insn "$extension" | grep -q '%[yz]mm' || exit 0
echo "Building hnswlib for any x86-64 processor …" >&2
HNSWLIB_NO_NATIVE=1 "$python" -m pip --quiet --disable-pip-version-check install --no-cache-dir --no-deps \
    --force-reinstall --no-binary hnswlib --constraint constraints.txt hnswlib
