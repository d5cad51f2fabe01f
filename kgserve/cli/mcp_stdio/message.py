"""What the bridge must know of a JSON-RPC message; the rest passes as it came."""

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


class MessageKind(Enum):
    """The three kinds of message."""

    REQUEST = auto()
    NOTIFICATION = auto()
    ANSWER = auto()


class Malformed(Exception):
    """A line that is no message; ``code`` is JSON-RPC's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class EditorMessage(NamedTuple):
    """One line from the editor. ``version`` is set in the stateless era only, where every request names it."""

    line: bytes
    kind: MessageKind
    id: str | float | None
    method: str
    params: dict[str, Any]
    version: str | None

    @property
    def tool(self) -> str | None:
        """The tool that it calls, if it calls one."""
        name = self.params.get("name")
        return name if self.method == CALL and isinstance(name, str) else None

    @property
    def routing(self) -> dict[str, str]:
        """The headers that repeat parts of a stateless request, so that it can be routed unread."""
        if self.version is None:
            return {}
        headers = {"MCP-Protocol-Version": self.version, "Mcp-Method": self.method}
        name = self.params.get(_NAME_KEYS.get(self.method, ""))
        return headers | {"Mcp-Name": header_value(name)} if isinstance(name, str) else headers


def parse(line: bytes) -> EditorMessage:
    """The message of a line. Raises Malformed."""
    try:
        given: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Malformed(PARSE_ERROR, f"this line is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Malformed(INVALID_REQUEST, "one line holds one JSON-RPC object; batches are not supported")
    fields = cast("dict[str, Any]", given)
    method, params = fields.get("method"), _object(fields.get("params"))
    if isinstance(method, str):
        kind = MessageKind.REQUEST if "id" in fields else MessageKind.NOTIFICATION
    elif "result" in fields or "error" in fields:
        kind, method = MessageKind.ANSWER, ""
    else:
        raise Malformed(INVALID_REQUEST, "a JSON-RPC object needs a method, a result or an error")
    version = _object(params.get("_meta")).get(_VERSION_KEY)
    return EditorMessage(line, kind, fields.get("id"), method, params, version if isinstance(version, str) else None)


def failure(request: str | float | None, code: int, message: str) -> bytes:
    """An error answer as one line."""
    return json.dumps({"jsonrpc": "2.0", "id": request, "error": {"code": code, "message": message}}).encode()


def answered(text: bytes, request: str | float | None) -> bytes | None:
    """``text`` as the line of an answer to ``request``; None when it is something else, such as a notification.

    A server that refuses a request before it has read its id answers with the id null.
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


def is_result(answer: bytes) -> bool:
    """Whether an answer is a result, not an error."""
    return "result" in _object(json.loads(answer))


def method_of(text: bytes) -> str | None:
    """The method of a server's message, if it has one."""
    try:
        method = _object(json.loads(text)).get("method")
    except (ValueError, RecursionError):
        return None
    return method if isinstance(method, str) else None


def negotiated_version(answer: bytes) -> str | None:
    """The protocol version in the answer to ``initialize``; None when it was refused."""
    version = _object(_object(json.loads(answer)).get("result")).get("protocolVersion")
    return version if isinstance(version, str) else None


def header_value(text: str) -> str:
    """``text`` as MCP puts it into a header: as it is, or marked and in base64 where a header could not carry it."""
    if _PLAIN_HEADER_VALUE.fullmatch(text) and not _ENCODED_HEADER_VALUE.fullmatch(text):
        return text
    return f"=?base64?{binascii.b2a_base64(text.encode(), newline=False).decode('ascii')}?="


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
