"""What is asked about a store that another node of the cluster serves: asked there, in the caller's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from mcp import MCPError
from mcp.shared.inbound import encode_header_value

from kgserve.access.authentication import CALLER_HEADER, Caller
from kgserve.decoding import json_decoder
from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.forwarding import Forwarder
from kgserve.mcp.repeats import AGE_HEADER, CALL_HEADER
from kgserve.version import __version__

_VERSION = "2026-07-28"
"""Of the protocol, in which a request needs no session: each node has its own."""
_META = "io.modelcontextprotocol/"
_PASSED_ON = (CALL_HEADER, AGE_HEADER, "kgserve-store", "kgserve-tools", "kgserve-answers", "kgserve-hops")


class _Error(msgspec.Struct, frozen=True):
    code: int
    message: str
    data: Any = None


class _Answer(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None
    error: _Error | None = None


_decode = json_decoder(_Answer).decode


async def asked_elsewhere(
    forwarder: Forwarder,
    served: ServedElsewhere,
    caller: Caller,
    asked: tuple[str, Mapping[str, Any]],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """The result of a method, ``asked`` with its parameters, at the node that serves the store.

    Raises Unavailable, and MCPError as that one does.
    """
    method, params = asked
    meta = {
        f"{_META}protocolVersion": _VERSION,
        f"{_META}clientCapabilities": {},
        f"{_META}clientInfo": {"name": "kgserve", "version": __version__},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    told = {each: headers[each] for each in _PASSED_ON if each in headers} | {
        CALLER_HEADER: msgspec.json.encode(caller).decode("ascii"),
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _VERSION,
        "mcp-method": method,
        "mcp-name": encode_header_value(params.get("name") or params["uri"]),
    }
    async with forwarder.asked(served, ("POST", "/mcp"), told, msgspec.json.encode(request)) as response:
        answer = _decode(await response.aread())
    if answer.error is not None:
        raise MCPError(answer.error.code, answer.error.message, answer.error.data)
    if answer.result is None:
        raise Unavailable(f"node {served.node!r}, which serves the store, answered with {response.status_code}")
    return answer.result
