"""Extensions that the setup compiles run on every x86-64 processor."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess

import pytest

from tests.programs import needs_hnswlib

AVX_REGISTER = re.compile(r"%[yz]mm\d+")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is of x86-64")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="it takes objdump, of the package binutils")
@needs_hnswlib
def test_hnswlib_holds_no_avx_instructions() -> None:
    found = importlib.util.find_spec("hnswlib")
    assert found is not None
    assert found.origin is not None
    done = subprocess.run(["objdump", "--disassemble", found.origin], capture_output=True, text=True, check=True)
    assert AVX_REGISTER.search(done.stdout) is None, (
        f"{found.origin} was compiled for this machine's processor alone; build it again with `make setup`"
    )
