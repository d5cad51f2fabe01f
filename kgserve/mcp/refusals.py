"""The SDK's refusals of what is no request, in our words: its own show which classes it failed to make of a body."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.decoding import decode_json

_BAD_REQUEST = 400
_TELLTALE = "Validation error: "
_WORDS = 'the body is not a JSON-RPC 2.0 message: one object with "jsonrpc": "2.0", a method, params and an id'


class InWords:
    """Wraps ASGI's ``send``; a refusal's body is held back until it is whole, and then told in words."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        self._body = b""

    async def __call__(self, message: Any) -> None:
        """As ASGI's."""
        if message["type"] == "http.response.start" and int(message["status"]) == _BAD_REQUEST:
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._refuse(message)
        else:
            await self._send(message)

    async def _refuse(self, message: Any) -> None:
        body = _told(self._body)
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})


def _told(body: bytes) -> bytes:
    try:
        answer = decode_json(body, dict[str, Any])
        if not answer["error"]["message"].startswith(_TELLTALE):
            return body
        answer["error"]["message"] = _WORDS
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return body
    return msgspec.json.encode(answer)
