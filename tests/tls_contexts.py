"""Shared TLS context for httpx clients: loading all authorities takes 40 ms, and tests create many clients."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx._transports.default as transports

_made = transports.create_ssl_context  # pyright: ignore[reportPrivateImportUsage]


@cache
def _usual() -> ssl.SSLContext:
    return _made()


def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """Create a context as httpx does, but only once for the default arguments."""
    return _usual() if verify is True and cert is None else _made(verify, cert, trust_env)


transports.create_ssl_context = create_ssl_context  # pyright: ignore[reportPrivateImportUsage]
