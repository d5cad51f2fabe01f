"""A call of a tool about a store that another node of the cluster serves: made there, in the caller's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kgserve.access.caller import CALLER_HEADER, Caller
from kgserve.decoding import json_decoder
from kgserve.errors import ServedElsewhere, Unavailable
from kgserve.forwarding import Forwarder
from kgserve.mcp.repeats import AGE_HEADER, CALL_HEADER
from kgserve.version import __version__

_VERSION = "2026-07-28"
"""Of the protocol, in which a request needs no session: each node has its own."""
_META = "io.modelcontextprotocol/"
_PASSED_ON = (CALL_HEADER, AGE_HEADER, "kgserve-store", "kgserve-tools", "kgserve-answers", "kgserve-hops")
_OK = 200


class _Answer(msgspec.Struct, frozen=True):
    result: dict[str, Any] | None = None


_decode = json_decoder(_Answer).decode


async def called_elsewhere(
    forwarder: Forwarder,
    served: ServedElsewhere,
    caller: Caller,
    asked: tuple[str, Mapping[str, Any]],
    headers: Mapping[str, str],
) -> dict[str, Any]:
    """The result of a tool, ``asked`` by name and arguments, at the node that serves its store. Raises Unavailable."""
    name, arguments = asked
    meta = {
        f"{_META}protocolVersion": _VERSION,
        f"{_META}clientCapabilities": {},
        f"{_META}clientInfo": {"name": "kgserve", "version": __version__},
    }
    params = {"name": name, "arguments": arguments, "_meta": meta}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    told = {each: headers[each] for each in _PASSED_ON if each in headers} | {
        CALLER_HEADER: msgspec.json.encode(caller).decode("ascii"),
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _VERSION,
        "mcp-method": "tools/call",
        "mcp-name": name,
    }
    async with forwarder.asked(served, ("POST", "/mcp"), told, body) as response:
        answer = await response.aread()
    found = _decode(answer).result if response.status_code == _OK else None
    if found is None:
        raise Unavailable(f"node {served.node!r}, which serves the store, answered with {response.status_code}")
    return found
