from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from kgserve.cluster import audit_and_api_key_sync
from kgserve.cluster.audit_and_api_key_sync import ClusterAuditLogWriter, read_replicated_audit_records
from kgserve.errors import OutcomeUnknown, ReplicatedLogCorrupt
from kgserve.platform.access.audit import AuditLog
from tests.cluster.rig import Rig


def acts(rig: Rig, node: str, limit: int = 1_000) -> list[str]:
    return [each.act for each in read_replicated_audit_records(rig.node().log, node, limit)]


def test_shipped_audit_records_are_read_once_by_other_nodes(rig: Rig, tmp_path: Path) -> None:
    node, audit = f"n{uuid4().hex}", AuditLog(tmp_path)
    assert acts(rig, node) == []
    audit.record_admin_action("first", "done", caller="boss")
    shipping = ClusterAuditLogWriter(rig.node().log, node, tmp_path)
    shipping.ship()
    audit.record_admin_action("second", "done")
    shipping.ship()
    shipping.ship()
    # A second process continues after the first has ended.
    audit.record_admin_action("third", "done")
    ClusterAuditLogWriter(rig.node().log, node, tmp_path).ship()
    ClusterAuditLogWriter(rig.node().log, node, tmp_path).ship()
    found = read_replicated_audit_records(rig.node().log, node, 1_000)
    assert [(each.act, each.node, each.caller) for each in found] == [
        ("first", node, "boss"),
        ("second", node, ""),
        ("third", node, ""),
    ]
    assert acts(rig, node, 2) == ["second", "third"]


def test_a_node_that_lost_its_folder_continues_its_audit_log(rig: Rig, tmp_path: Path) -> None:
    node = f"n{uuid4().hex}"
    for folder in ("lost", "new"):
        (tmp_path / folder).mkdir()
        AuditLog(tmp_path / folder).record_admin_action(folder, "done")
        ClusterAuditLogWriter(rig.node().log, node, tmp_path / folder).ship()
    assert acts(rig, node) == ["lost", "new"]


@pytest.mark.usefixtures("hasty")
def test_an_unconfirmed_audit_entry_is_looked_up(rig: Rig, tmp_path: Path) -> None:
    name, audit = f"n{uuid4().hex}", AuditLog(tmp_path)
    # Longer than one attempt, since requests during a reconnect are lost as well.
    node, fault = rig.faulty_node(2)
    shipping = ClusterAuditLogWriter(node.log, name, tmp_path)
    audit.record_admin_action("first", "done")
    shipping.ship()
    fault.lose_answers()
    audit.record_admin_action("second", "done")
    with pytest.raises(OutcomeUnknown):
        shipping.ship()
    fault.heal()
    audit.record_admin_action("third", "done")
    shipping.ship()
    assert acts(rig, name) == ["first", "second", "third"]


def test_the_oldest_audit_entries_are_trimmed(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_and_api_key_sync, "MIN_AUDIT_STRETCH_BYTES", 500)
    monkeypatch.setattr(audit_and_api_key_sync, "MAX_AUDIT_STRETCHES", 3)
    node, audit, log = f"n{uuid4().hex}", AuditLog(tmp_path), rig.node().log
    shipping = ClusterAuditLogWriter(log, node, tmp_path)
    for number in range(60):
        audit.record_admin_action(f"act-{number}", "done")
        shipping.ship()
    found = acts(rig, node)
    assert found == [f"act-{number}" for number in range(60 - len(found), 60)]
    assert 3 <= len(found) <= 20
    name = f"_audit.{node}"
    assert log.end(name)
    with pytest.raises(ReplicatedLogCorrupt):
        next(iter(log.read(name, 0, log.end(name))))


def test_audit_records_are_shipped_periodically_and_at_the_end(rig: Rig, tmp_path: Path) -> None:
    node, audit = f"n{uuid4().hex}", AuditLog(tmp_path)
    with ClusterAuditLogWriter(rig.node().log, node, tmp_path):
        audit.record_admin_action("act", "done")
    assert acts(rig, node) == ["act"]
