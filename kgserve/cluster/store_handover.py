"""Handover of a moved store: wait until its new node has opened it."""

from __future__ import annotations

import ssl
import time
from contextlib import closing
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

import msgspec

from kgserve.platform.codecs import decode_json
from kgserve.platform.http_client import OutboundHttpConnection

HANDOVER_RETRY_SECONDS = 0.2
_MIN_ANSWER_TIMEOUT_SECONDS = 0.05
"""Minimum timeout of a request, so that the target is asked at least once."""


class StoreHandoverTarget(NamedTuple):
    """Node that will serve a store: its name, URL and token."""

    node: str
    url: str
    token: str


class _Refusal(msgspec.Struct):
    detail: str = ""


def wait_until_node_opened_store(store: str, target: StoreHandoverTarget, until: float) -> str:
    """Request a store from a node until it has opened it. Return "" on success, else the reason.

    until: deadline as a `time.monotonic` reading. The node is asked at least once.
    """
    while True:
        status, reason = _request_store(store, target, until)
        if status == HTTPStatus.OK:
            return ""
        # A final answer, which a retry will not change.
        is_final = status not in {0, HTTPStatus.SERVICE_UNAVAILABLE}
        if is_final or time.monotonic() + HANDOVER_RETRY_SECONDS > until:
            return f"node {target.node!r} has not opened store {store!r} yet: {reason}"
        time.sleep(HANDOVER_RETRY_SECONDS)


def _request_store(store: str, target: StoreHandoverTarget, until: float) -> tuple[int, str]:
    """Return the status and message of one response; status 0 if none arrived."""
    headers = {"authorization": f"Bearer {target.token}", "accept": "application/json", "connection": "close"}
    patience = max(until - time.monotonic(), _MIN_ANSWER_TIMEOUT_SECONDS)
    try:
        with closing(OutboundHttpConnection(target.url, patience, ssl.create_default_context)) as connection:
            answer = connection.request("GET", f"/api/memory/{quote(store, safe='')}/stats", headers)
            return answer.status, _error_detail(connection.body()) if answer.status != HTTPStatus.OK else ""
    except TimeoutError:
        return 0, "it has not responded in time and is still opening the store"
    except OSError as error:
        return 0, f"it does not respond ({error})"


def _error_detail(body: bytes) -> str:
    try:
        return decode_json(body, _Refusal).detail
    except msgspec.MsgspecError:
        return "its response cannot be read"
