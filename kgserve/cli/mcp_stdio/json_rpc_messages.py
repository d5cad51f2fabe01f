"""Parsing of JSON-RPC messages, as far as the bridge needs it; everything else passes unchanged."""

from __future__ import annotations

import binascii
import json
import re
from enum import Enum, auto
from typing import Any, NamedTuple, cast

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
NO_SERVER_ERROR = -32000

INITIALIZE = "initialize"
INITIALIZED = "notifications/initialized"
CANCELLED = "notifications/cancelled"
LISTEN = "subscriptions/listen"
CALL = "tools/call"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

_VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
_NAME_KEYS = {CALL: "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN_HEADER_VALUE = re.compile(r"[!-~]([ -~]*[!-~])?")
_ENCODED_HEADER_VALUE = re.compile(r"=\?base64\?.*\?=")


class JsonRpcMessageKind(Enum):
    """Kind of a JSON-RPC message."""

    REQUEST = auto()
    NOTIFICATION = auto()
    ANSWER = auto()


class MalformedJsonRpcMessage(Exception):
    """A line that is not a JSON-RPC message. ``code`` is a JSON-RPC error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EditorJsonRpcMessage(NamedTuple):
    """JSON-RPC message on one line from the editor. ``version`` is set only by the stateless protocol."""

    line: bytes
    kind: JsonRpcMessageKind
    id: str | float | None
    method: str
    params: dict[str, Any]
    version: str | None

    @property
    def tool(self) -> str | None:
        """Name of the tool that the message calls, or None."""
        name = self.params.get("name")
        return name if self.method == CALL and isinstance(name, str) else None

    @property
    def routing(self) -> dict[str, str]:
        """Headers that repeat parts of a stateless request, so that proxies can route it without parsing the body."""
        if self.version is None:
            return {}
        headers = {"MCP-Protocol-Version": self.version, "Mcp-Method": self.method}
        name = self.params.get(_NAME_KEYS.get(self.method, ""))
        return headers | {"Mcp-Name": encode_mcp_header(name)} if isinstance(name, str) else headers


def parse_json_rpc_message(line: bytes) -> EditorJsonRpcMessage:
    """Parse a line into a message. Raises MalformedJsonRpcMessage."""
    try:
        given: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedJsonRpcMessage(PARSE_ERROR, f"this line is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise MalformedJsonRpcMessage(
            INVALID_REQUEST, "each line must hold one JSON-RPC object; batches are not supported"
        )
    fields = cast("dict[str, Any]", given)
    method, params = fields.get("method"), _object(fields.get("params"))
    if isinstance(method, str):
        kind = JsonRpcMessageKind.REQUEST if "id" in fields else JsonRpcMessageKind.NOTIFICATION
    elif "result" in fields or "error" in fields:
        kind, method = JsonRpcMessageKind.ANSWER, ""
    else:
        raise MalformedJsonRpcMessage(INVALID_REQUEST, "a JSON-RPC object needs a method, a result or an error")
    version = _object(params.get("_meta")).get(_VERSION_KEY)
    return EditorJsonRpcMessage(
        line, kind, fields.get("id"), method, params, version if isinstance(version, str) else None
    )


def encode_json_rpc_error(request: str | float | None, code: int, message: str) -> bytes:
    """Return an error answer as one line of JSON."""
    return json.dumps({"jsonrpc": "2.0", "id": request, "error": {"code": code, "message": message}}).encode()


def to_json_rpc_answer_line(text: bytes, request: str | float | None) -> bytes | None:
    """Return ``text`` as the one-line answer to ``request``; None for other messages, such as notifications.

    A server that rejects a request before reading its id answers with a null id, which is replaced.
    """
    try:
        given: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    fields = _object(given)
    if "method" in fields or not ("result" in fields or "error" in fields):
        return None
    if fields.get("id") == request and b"\n" not in text and b"\r" not in text:
        return text
    return json.dumps({**fields, "id": request}).encode()


def is_json_rpc_result(answer: bytes) -> bool:
    """Return True if an answer is a result rather than an error."""
    return "result" in _object(json.loads(answer))


def parse_json_rpc_method(text: bytes) -> str | None:
    """Return the method of a server's message, or None."""
    try:
        method = _object(json.loads(text)).get("method")
    except (ValueError, RecursionError):
        return None
    return method if isinstance(method, str) else None


def parse_negotiated_mcp_version(answer: bytes) -> str | None:
    """Return the protocol version in the answer to ``initialize``; None when the server rejected it."""
    version = _object(_object(json.loads(answer)).get("result")).get("protocolVersion")
    return version if isinstance(version, str) else None


def encode_mcp_header(text: str) -> str:
    """Encode ``text`` for an MCP header: unchanged, or as marked base64 where a header cannot carry it."""
    if _PLAIN_HEADER_VALUE.fullmatch(text) and not _ENCODED_HEADER_VALUE.fullmatch(text):
        return text
    return f"=?base64?{binascii.b2a_base64(text.encode(), newline=False).decode('ascii')}?="


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
