"""Run the abuse list and print a table by number: `python -m tests.abuse [OPTIONS OF PYTEST]`."""

from __future__ import annotations

import sys

import pytest

if __name__ == "__main__":
    options = ["-q", "-p", "tests.abuse.table", "--no-header", "-r", "fE"]
    sys.exit(pytest.main([*options, *sys.argv[1:]]))
