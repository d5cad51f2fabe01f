"""Waiting until the node that a store was handed over to has opened it."""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from kgserve.platform.codecs import decode_json
from kgserve.platform.http_client import ClientConnection

HANDOVER_RETRY_SECONDS = 0.2
_MIN_ANSWER_TIMEOUT_SECONDS = 0.05
"""The least time a target has for an answer: it was asked, at least."""


class HandoverTarget(NamedTuple):
    """A node that is to serve a store: its name, where it is reached, and the token that it takes."""

    node: str
    url: str
    token: str


class _Refusal(msgspec.Struct):
    detail: str = ""


def await_opened(store: str, target: HandoverTarget, until: float) -> str:
    """Ask a node for a store, which opens it there, until it answers; empty once it has, else why not, in words.

    until: a reading of `time.monotonic`. The node is asked once, at least.
    """
    while True:
        status, said = _asked(store, target, until)
        if status == HTTPStatus.OK:
            return ""
        # An answer that another attempt will not change.
        is_final = status not in {0, HTTPStatus.SERVICE_UNAVAILABLE}
        if is_final or time.monotonic() + HANDOVER_RETRY_SECONDS > until:
            return f"node {target.node!r} has not opened store {store!r} yet: {said}"
        time.sleep(HANDOVER_RETRY_SECONDS)


def _asked(store: str, target: HandoverTarget, until: float) -> tuple[int, str]:
    """The status of one answer and what it says; 0 where there was none."""
    headers = {"authorization": f"Bearer {target.token}", "accept": "application/json", "connection": "close"}
    patience = max(until - time.monotonic(), _MIN_ANSWER_TIMEOUT_SECONDS)
    try:
        with closing(ClientConnection(target.url, patience, ssl.create_default_context)) as connection:
            answer = connection.request("GET", f"/api/memory/{quote(store, safe='')}/stats", headers)
            return answer.status, _said(connection.body()) if answer.status != HTTPStatus.OK else ""
    except TimeoutError:
        return 0, "it has not answered in time; it goes on with opening the store"
    except OSError as error:
        return 0, f"it does not answer ({error})"


def _said(body: bytes) -> str:
    try:
        return decode_json(body, _Refusal).detail
    except msgspec.MsgspecError:
        return "its answer cannot be read"
