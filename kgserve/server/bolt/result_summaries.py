"""Metadata of the SUCCESS that ends a result."""

from __future__ import annotations

from typing import Any

import msgspec

from kgserve.errors import InvalidInput
from kgserve.server.bolt.backend_interface import ExecutionPlanOperator, StatementNotification, StatementSummary
from kgserve.server.bolt.handshake import ProtocolVersion
from kgserve.server.bolt.messages import BoltMessageOptions

STATUSES_SINCE: ProtocolVersion = (5, 5)
FILTERS_SINCE: ProtocolVersion = (5, 2)
LEGACY_CATEGORIES: ProtocolVersion = (5, 4)
"""Last version whose filter is called ``notifications_disabled_categories``."""

_SEVERITIES = ("INFORMATION", "WARNING", "OFF")
_DIAGNOSTICS = {"OPERATION": "", "OPERATION_CODE": "0", "CURRENT_SCHEMA": "/"}
_COMPLETED = ("00000", "note: successful completion")
_OMITTED = ("00001", "note: successful completion - omitted result")
_NO_DATA = ("02000", "note: no data")


class BoltNotificationFilter(msgspec.Struct, frozen=True):
    """Filter of the notifications that a client wants: from a severity on, without some categories."""

    minimum_severity: str = "INFORMATION"
    disabled: frozenset[str] = frozenset()

    def updated(self, options: BoltMessageOptions, version: ProtocolVersion) -> BoltNotificationFilter:
        """Return the filter with the settings of a message. Raises InvalidInput."""
        if version < FILTERS_SINCE:
            return self
        severity = options.text("notifications_minimum_severity").upper() or self.minimum_severity
        if severity not in _SEVERITIES:
            raise InvalidInput(f"`notifications_minimum_severity` must be one of {', '.join(_SEVERITIES)}")
        name = "categories" if version <= LEGACY_CATEGORIES else "classifications"
        if not options.has(f"notifications_disabled_{name}"):
            return BoltNotificationFilter(severity, self.disabled)
        disabled = options.texts(f"notifications_disabled_{name}")
        return BoltNotificationFilter(severity, frozenset(each.upper() for each in disabled))

    def accepts(self, notification: StatementNotification) -> bool:
        """Return whether the client wants a notification."""
        severity = _SEVERITIES.index(notification.severity)
        return severity >= _SEVERITIES.index(self.minimum_severity) and notification.category not in self.disabled


def build_result_summary_metadata(
    summary: StatementSummary,
    version: ProtocolVersion,
    notification_filter: BoltNotificationFilter,
    *,
    has_columns: bool,
    has_records: bool,
) -> dict[str, Any]:
    """Return the metadata of a result's summary, without times and database."""
    metadata: dict[str, Any] = {"type": summary.type}
    if summary.bookmark:
        metadata["bookmark"] = summary.bookmark
    if summary.counters:
        metadata["stats"] = {**summary.counters, "contains-updates": True}
    if summary.plan is not None:
        metadata["plan"] = _describe_plan(summary.plan, is_profile=False)
    if summary.profile is not None:
        metadata["profile"] = _describe_plan(summary.profile, is_profile=True)
    wanted = [each for each in summary.notifications if notification_filter.accepts(each)]
    if version < STATUSES_SINCE:
        if wanted:
            metadata["notifications"] = [_describe_notification(each) for each in wanted]
        return metadata
    outcome = _OMITTED if not has_columns else _COMPLETED if has_records else _NO_DATA
    statuses = [_describe_status(each) for each in wanted]
    own = {"gql_status": outcome[0], "status_description": outcome[1], "diagnostic_record": _DIAGNOSTICS}
    metadata["statuses"] = [own, *statuses] if outcome is not _OMITTED else [*statuses, own]
    return metadata


def _describe_notification(notification: StatementNotification) -> dict[str, Any]:
    described: dict[str, Any] = {
        "code": notification.code,
        "title": notification.title,
        "description": notification.description,
        "severity": notification.severity,
        "category": notification.category,
    }
    if notification.position is not None:
        described["position"] = _describe_position(notification.position)
    return described


def _describe_status(notification: StatementNotification) -> dict[str, Any]:
    diagnostics: dict[str, Any] = {
        **_DIAGNOSTICS,
        "_classification": notification.category,
        "_severity": notification.severity,
    }
    if notification.position is not None:
        diagnostics["_position"] = _describe_position(notification.position)
    return {
        "gql_status": notification.gql_status,
        "status_description": f"{notification.severity.lower()}: {notification.description}",
        "neo4j_code": notification.code,
        "title": notification.title,
        "description": notification.description,
        "diagnostic_record": diagnostics,
    }


def _describe_position(position: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("offset", "line", "column"), position, strict=True))


def _describe_plan(plan: ExecutionPlanOperator, *, is_profile: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operatorType": plan.operator,
        "identifiers": list(plan.identifiers),
        "args": dict(plan.arguments),
        "children": [_describe_plan(child, is_profile=is_profile) for child in plan.children],
    }
    if is_profile:
        described |= {"rows": plan.rows, "dbHits": plan.db_hits}
    return described
