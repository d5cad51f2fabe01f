"""uvicorn's HTTP parser, made to speak of malformed requests as everything else here does."""

from __future__ import annotations

import secrets

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from kgserve.errors import InvalidInput
from kgserve.http.problem import MEDIA_TYPE, render


class Protocol(HttpToolsProtocol):
    """Answers what is not HTTP with a problem document and closes the connection."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Called before there is a request that the application could answer."""
        request_id = secrets.token_hex(8)
        answer = render(InvalidInput("this is not a well-formed HTTP request"), request_id)
        lines = (
            "HTTP/1.1 400 Bad Request",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(answer.body)}",
            f"x-request-id: {request_id}",
            "connection: close",
        )
        self.transport.write("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + answer.body)
        self.transport.close()
