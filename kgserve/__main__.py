"""``python -m kgserve`` is ``kgserve``."""

from __future__ import annotations

from kgserve.cli import main

if __name__ == "__main__":
    main()
