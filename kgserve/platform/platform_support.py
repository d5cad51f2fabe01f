"""The operating systems that kgserve runs on, and what to do on the others. Standard library only."""

from __future__ import annotations

import sys

_WSL_ADVICE = "install it in WSL (`wsl --install`, then as on Linux), and run it there"
_UNSUPPORTED_PLATFORMS = {
    "win32": f"kgserve does not run on Windows itself; {_WSL_ADVICE}",
    "cygwin": f"kgserve does not run under Cygwin; {_WSL_ADVICE}",
    "darwin": "a server of kgserve needs Linux, and this is macOS; run its container, and give its address to clients, "
    "and to editors with `kgserve mcp --url http://127.0.0.1:8080`",
}


def refusal(system: str = sys.platform) -> str | None:
    """Why no server can run on this system, and what to do; None where one can."""
    return _UNSUPPORTED_PLATFORMS.get(system) or (
        None if system == "linux" else f"kgserve needs Linux, and this is {system}"
    )


def has_clients(system: str = sys.platform) -> bool:
    """Whether clients of a server run on this system."""
    return system not in {"win32", "cygwin"}
