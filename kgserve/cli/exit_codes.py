"""Exit codes of the commands."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_WRONG_USAGE = 2
EXIT_NO_SERVER = 3
EXIT_INTERRUPTED = 130
