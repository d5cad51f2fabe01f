"""Entry point of the command ``kgserve`` and of ``python -m kgserve``."""

from __future__ import annotations

import sys

from kgserve.platform import supported_platforms

# Replaces typing.TYPE_CHECKING: importing typing would delay the start of the stdio bridge.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_LEFT_TO_CLICK = {"config", "hooks", "install", "link", "-h", "--help"}


def main() -> NoReturn:
    """Run the `kgserve` command line. `kgserve mcp` bypasses click, whose import would delay the bridge's start."""
    arguments = sys.argv[1:]
    if not supported_platforms.is_kgserve_client_platform_supported():
        sys.exit(f"kgserve: {supported_platforms.describe_unsupported_platform()}")
    if arguments[:1] == ["mcp"] and not _LEFT_TO_CLICK.intersection(arguments[1:]):
        from kgserve.cli.mcp_stdio import command  # noqa: PLC0415 - one of the two is needed, never both

        sys.exit(command.run_mcp_command(arguments[1:]))
    from kgserve.cli import root  # noqa: PLC0415 - as above

    root.main()


if __name__ == "__main__":
    main()
