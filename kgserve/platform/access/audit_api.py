"""Requests and answers about the audit log."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_AUDIT_RECORDS = 1000


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of the audit log.

    ``kind`` is "denied" or "admin". ``times`` counts refusals that were not written one by one. ``node`` is the cluster
    node that wrote the record.
    """

    time: str
    kind: str
    act: str
    outcome: str
    request: str = ""
    caller: str = ""
    key: str | None = None
    address: str = ""
    store: str | None = None
    about: str = ""
    times: int = 1
    node: str = ""


class AuditQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Query of the audit log."""

    node: Annotated[str, Meta(min_length=1, max_length=64, description="Only records written by this node")] | None = (
        None
    )
    limit: Annotated[
        int, Meta(ge=1, le=MAX_AUDIT_RECORDS, description="Return at most this many of the newest records")
    ] = 100


class AuditAnswer(msgspec.Struct, kw_only=True):
    """Newest audit records, oldest first."""

    records: list[AuditRecord]
