from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kgserve.platform.access.audit import (
    AUDIT_FILE,
    MAX_AUDIT_FILE_BYTES,
    MAX_REFUSALS_PER_SOURCE,
    MAX_REFUSALS_PER_WINDOW,
    MAX_ROTATED_AUDIT_FILES,
    AuditLog,
)
from tests.platform.access.keys import audited


def test_a_flood_of_refusals_is_counted_instead_of_written(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    for _ in range(1_000):
        audit.record_refusal("GET /x", "401", address="192.0.2.1")
    audit.record_refusal("GET /y", "403", address="192.0.2.2", key="abcdefgh")
    audit.close()
    lines = audited(tmp_path)
    flood = [line for line in lines if line["address"] == "192.0.2.1"]
    assert [line.get("times", 1) for line in flood] == [1] * MAX_REFUSALS_PER_SOURCE + [1_000 - MAX_REFUSALS_PER_SOURCE]
    assert [line["act"] for line in lines if line["address"] == "192.0.2.2"] == ["GET /y"]


def test_a_distributed_flood_is_bounded_and_hides_no_admin_action(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    for number in range(20_000):
        audit.record_refusal("GET /x", "401", address=f"2001:db8:{number:x}::1")
    audit.record_admin_action("dropStore", "done", caller="boss", store="s")
    lines = audited(tmp_path)
    assert len(lines) <= MAX_REFUSALS_PER_WINDOW + 1
    assert (lines[-1]["kind"], lines[-1]["store"]) == ("admin", "s")


def test_an_ipv6_network_counts_as_one_address(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    for number in range(1_000):
        audit.record_refusal("GET /x", "401", address=f"2001:db8::{number:x}")
    assert len(audited(tmp_path)) == MAX_REFUSALS_PER_SOURCE


def test_failed_admin_actions_do_not_rotate_the_file(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    for _ in range(1_000):
        audit.record_failed_action("dropStore", "failed: 404", address="192.0.2.1", key="abcdefgh")
    audit.record_admin_action("dropStore", "done", address="192.0.2.1", key="abcdefgh", store="s")
    audit.close()
    lines = audited(tmp_path)
    assert {line["kind"] for line in lines} == {"admin"}
    assert sum(line.get("times", 1) for line in lines) == 1_001
    assert len(lines) == MAX_REFUSALS_PER_SOURCE + 2


def test_caller_input_cannot_break_lines_or_leak_secrets(tmp_path: Path) -> None:
    secret = f"kgs_abcdefgh_{'A' * 43}"
    AuditLog(tmp_path).record_refusal(
        f'GET /"\n{{"kind":"admin"}}/{secret}/{"x" * 5_000}', "401", address="a", store=secret
    )
    [line] = audited(tmp_path)
    assert line["kind"] == "denied"
    assert "AAAA" not in str(line)
    assert len((tmp_path / AUDIT_FILE).read_bytes()) < 1_000


def test_the_audit_log_is_rotated(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    for number in range(MAX_ROTATED_AUDIT_FILES + 3):
        (tmp_path / AUDIT_FILE).write_bytes(b"x" * MAX_AUDIT_FILE_BYTES)
        audit.record_admin_action(f"act-{number}", "done")
    assert [line["act"] for line in audited(tmp_path)] == [f"act-{MAX_ROTATED_AUDIT_FILES + 2}"]
    older = sorted(path.name for path in tmp_path.glob(f"{AUDIT_FILE}.*"))
    assert older == [f"{AUDIT_FILE}.{number}" for number in range(1, MAX_ROTATED_AUDIT_FILES + 1)]


def test_the_command_line_does_not_rotate_the_audit_log(tmp_path: Path) -> None:
    (tmp_path / AUDIT_FILE).write_bytes(b"{}\n" * (MAX_AUDIT_FILE_BYTES // 3 + 1))
    AuditLog(tmp_path, rotating=False).record_admin_action("keys create", "done")
    assert [path.name for path in tmp_path.iterdir()] == [AUDIT_FILE]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: audit.record_admin_action(f"act-{number}", "done"), range(400)))
    assert {line["act"] for line in audited(tmp_path)} == {f"act-{number}" for number in range(400)}


def test_an_unwritable_audit_log_blocks_nothing(tmp_path: Path) -> None:
    (tmp_path / AUDIT_FILE).mkdir()
    AuditLog(tmp_path).record_admin_action("act", "done")
