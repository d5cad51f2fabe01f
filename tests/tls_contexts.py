"""Shared TLS context for httpx clients: loading all authorities takes 30 ms, and tests create many clients."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx._transports.default as transports

_create = transports.create_ssl_context  # pyright: ignore[reportPrivateImportUsage]


@cache
def _default_context() -> ssl.SSLContext:
    return _create()


def _create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """Create a context as httpx does, but only once for the default arguments."""
    return _default_context() if verify is True and cert is None else _create(verify, cert, trust_env)


def share_tls_context() -> None:
    """Let all httpx clients that trust the default authorities use one context."""
    transports.create_ssl_context = _create_ssl_context  # pyright: ignore[reportPrivateImportUsage]
