"""Supported operating systems, and advice for the others. Standard library only."""

from __future__ import annotations

import sys

_WSL_ADVICE = "install and run it in WSL (`wsl --install`, then as on Linux)"
_UNSUPPORTED_PLATFORMS = {
    "win32": f"kgserve does not run natively on Windows; {_WSL_ADVICE}",
    "cygwin": f"kgserve does not run under Cygwin; {_WSL_ADVICE}",
}


def describe_unsupported_platform(system: str = sys.platform) -> str | None:
    """Return why the server cannot run on this system and what to do instead, or None if it can."""
    return _UNSUPPORTED_PLATFORMS.get(system) or (
        None if system in {"linux", "darwin"} else f"kgserve needs Linux or macOS, and this is {system}"
    )


def is_kgserve_client_platform_supported(system: str = sys.platform) -> bool:
    """Return whether kgserve's clients run on this system."""
    return system not in {"win32", "cygwin"}
