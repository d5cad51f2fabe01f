"""Programs of others that tests need: who lacks one skips them, unless a variable says that it must be there."""

from __future__ import annotations

import os
from shutil import which

import pytest


def program(name: str, required: str, package: str = "") -> str:
    """The path of a program, which a Debian ``package`` brings; where the variable ``required`` says so, it must be."""
    found = which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")  # noqa: TID251 - it is no setting
    if found is not None:
        return found
    message = f"there is no {name}, so nothing was tried with it; `apt-get install {package or name}` brings it"
    if os.environ.get(required) == "required":  # noqa: TID251 - as above
        pytest.fail(message)
    pytest.skip(message)
