"""``kgserve serve``."""

from __future__ import annotations

from typing import Any

import click

from kgserve.cli.options import load, settings_options
from kgserve.permissions import private_files


@click.command()
@settings_options()
@private_files()
def serve(**values: Any) -> int:
    """Serve the stores of a data folder over REST and MCP until stopped."""
    settings = load(values)
    from kgserve import allocator

    allocator.bound_arenas()
    from kgserve import app

    return app.serve(settings)
