"""What is on record: refusals, and acts of administration."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_AUDIT_RECORDS = 1000


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. ``kind`` is "denied" or "admin"; ``times`` counts refusals that were not written one by one.

    ``node`` is the one that wrote it, where that is one of a cluster.
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
    """The query of what is on record."""

    node: Annotated[str, Meta(min_length=1, max_length=64, description="Only what this node wrote")] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_AUDIT_RECORDS, description="Most records, the newest")] = 100


class AuditAnswer(msgspec.Struct, kw_only=True):
    """The newest records, oldest first."""

    records: list[AuditRecord]
