"""External programs of tests; tests are skipped without them, unless a variable requires them."""

from __future__ import annotations

import os
from shutil import which

import pytest


def program(name: str, required: str, package: str = "") -> str:
    """Return the path of a program from a Debian ``package``; fail without it if the variable ``required`` says so."""
    found = which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # noqa: TID251 - not a setting
    if found is not None:
        return found
    message = f"{name} was not found; `apt-get install {package or name}` installs it"
    if os.environ.get(required) == "required":  # noqa: TID251 - not a setting
        pytest.fail(message)
    pytest.skip(message)
