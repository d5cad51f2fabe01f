"""What both ways of sending share: time limits, and how a method is shown that was made from a description."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from kgserve.client.wire import Call

TIMEOUT = 60.0
"""Seconds that an answer may take, unless told otherwise."""
CONNECT_TIMEOUT = 2.0
"""Seconds that a server may take to accept a connection."""
# The server closes connections that were idle for 5 s; one taken up at that very moment would break.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=2.0)


def limit(call: Call[Any], usual: float | None) -> httpx.Timeout:
    """The time limits of a call; ``usual`` is the client's own, in seconds."""
    wait = usual if isinstance(call.wait, msgspec.UnsetType) else call.wait
    return httpx.Timeout(wait, connect=CONNECT_TIMEOUT, pool=None)


def present(method: Any, build: Callable[..., Any], returns: str, *, of_store: bool) -> None:
    """Show ``method`` with name, description and parameters of ``build``; a store's methods know its name already.

    In ``returns``, ``{}`` stands for what the request that ``build`` makes is answered with.
    """
    signature = inspect.signature(build)
    given = list(signature.parameters.values())[1 if of_store else 0 :]
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    _, _, answer = str(signature.return_annotation).removesuffix("]").partition("[")
    method.__name__ = build.__name__
    method.__qualname__ = build.__qualname__
    method.__doc__ = build.__doc__
    method.__signature__ = inspect.Signature([this, *given], return_annotation=returns.format(answer))
    method.build = build
