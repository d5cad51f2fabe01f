"""What a data folder says of the process that serves it. Standard library only: the editors' bridge starts with this.

Two files of the folder speak of it: ``server.lock`` is locked for as long as a process has the folder and names it;
``server.json`` is there once that process accepts connections.
"""

from __future__ import annotations

import fcntl
import json
import os
import ssl
from pathlib import Path
from typing import Any, NamedTuple, cast

LOCK_FILE = "server.lock"
SERVER_FILE = "server.json"
UNNAMED = 0
"""The holder's process id while it has the lock and has not written its own yet."""


class ServerFile(NamedTuple):
    """server.json: the process that serves the folder, its address, and a token for clients of the same user.

    ``certificate`` is the one that the server shows, as PEM, when it serves over TLS.
    """

    pid: int
    url: str
    token: str
    certificate: str | None = None


def encode(server: ServerFile) -> bytes:
    """The content of server.json."""
    fields = {name: value for name, value in server._asdict().items() if value is not None}
    return json.dumps(fields, separators=(",", ":")).encode()


def trust(certificate: str | None) -> ssl.SSLContext:
    """Whom a client believes: the server with this very certificate, whatever names are in it; or as usual.

    An empty text is nobody's certificate.
    """
    if certificate is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # Otherwise only a certificate that signed itself could be believed on its own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if certificate:
        context.load_verify_locations(cadata=certificate)
    return context


def read(data_dir: Path) -> ServerFile | None:
    """What server.json says, whether or not the process that wrote it is still there; None when it cannot be read."""
    try:
        given = json.loads((data_dir / SERVER_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return _from_json(given)


def read_server_file(data_dir: Path) -> ServerFile | None:
    """What the server of a data folder says of itself; None when no server has the folder."""
    found = read(data_dir)
    return found if found is not None and holder(data_dir) == found.pid else None


def holder(data_dir: Path) -> int | None:
    """The process that has the data folder, UNNAMED when it has not said which it is; None when nobody has it."""
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return named_in(descriptor) or UNNAMED
    finally:
        os.close(descriptor)
    return None


def named_in(descriptor: int) -> int | None:
    """The process id that stands in the lock file."""
    text = os.read(descriptor, 32).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _from_json(given: object) -> ServerFile | None:
    if not isinstance(given, dict):
        return None
    fields = cast("dict[str, Any]", given)
    match fields.get("pid"), fields.get("url"), fields.get("token"):
        case int(pid), str(url), str(token):
            certificate = fields.get("certificate")
            return ServerFile(pid, url, token, certificate if isinstance(certificate, str) else None)
        case _:
            return None
