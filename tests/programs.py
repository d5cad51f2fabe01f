"""External programs and optional packages; tests that need one are skipped without it."""

from __future__ import annotations

import os
from importlib.util import find_spec
from shutil import which

import pytest

needs_hnswlib = pytest.mark.skipif(find_spec("hnswlib") is None, reason="the extra hnswlib is not installed")


def program(name: str, required: str, package: str = "") -> str:
    """Return the path of a program from a Debian ``package``; fail without it if the variable ``required`` says so."""
    found = which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # noqa: TID251 - not a setting
    if found is not None:
        return found
    message = f"{name} was not found; `apt-get install {package or name}` installs it"
    if os.environ.get(required) == "required":  # noqa: TID251 - not a setting
        pytest.fail(message)
    pytest.skip(message)
