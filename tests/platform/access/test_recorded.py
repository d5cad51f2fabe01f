from __future__ import annotations

import random
from pathlib import Path

import pytest

from kgserve.platform.access import audit as record
from kgserve.platform.access.audit import (
    AUDIT_FILE,
    AuditLog,
    AuditPosition,
    count_damaged_audit_lines,
    read_audit_lines_after,
    read_newest_audit_records,
)


def test_the_newest_audit_records_are_read_across_rotated_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_AUDIT_FILE_BYTES", 1_000)
    audit = AuditLog(tmp_path)
    for number in range(20):
        audit.record_admin_action(f"act-{number}", "done", caller="boss")
    assert (tmp_path / f"{AUDIT_FILE}.1").exists()
    assert [each.act for each in read_newest_audit_records(tmp_path, 15)] == [
        f"act-{number}" for number in range(5, 20)
    ]
    assert read_newest_audit_records(tmp_path / "nowhere", 15) == []


def test_an_incomplete_audit_line_is_skipped(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    audit.record_admin_action("first", "done")
    with (tmp_path / AUDIT_FILE).open("ab") as file:
        file.write(b'{"time":"2026')
    assert [each.act for each in read_newest_audit_records(tmp_path, 5)] == ["first"]
    found = read_audit_lines_after(tmp_path, None)
    assert found is not None
    assert found[1].count(b"\n") == 1
    assert read_audit_lines_after(tmp_path, found[0]) is None


def test_an_altered_audit_line_is_left_out_and_counted(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    path = tmp_path / AUDIT_FILE
    path.write_bytes(b'{"time":"2026-01-01T00:00:00Z","kind":"admin","act":"older","outcome":"done"}\n')
    for act in ("first", "second"):
        audit.record_admin_action(act, "done", caller="boss", store="s")
    records, whole = read_newest_audit_records(tmp_path, 9), path.read_bytes()
    assert [each.act for each in records] == ["older", "first", "second"]
    begin = whole.index(b"\n") + 1
    for at in range(begin, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = read_newest_audit_records(tmp_path, 9)
        assert [each for each in found if each not in records] == []
        assert len(found) == 3 or count_damaged_audit_lines(tmp_path) != {}


def test_a_record_after_a_cut_line_is_whole(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    (tmp_path / AUDIT_FILE).write_bytes(b'{"time":"2026')
    audit.record_admin_action("next", "done")
    assert [each.act for each in read_newest_audit_records(tmp_path, 5)] == ["next"]
    assert count_damaged_audit_lines(tmp_path) == {AUDIT_FILE: 1}


def test_audit_lines_are_read_once_and_in_order_during_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MAX_AUDIT_FILE_BYTES", 1_000)
    chance, audit = random.Random(7), AuditLog(tmp_path)
    place: AuditPosition | None = None
    read, written = b"", 0
    while written < 300:
        for _ in range(chance.randrange(20)):  # fewer lines than the files hold, so that none is lost
            audit.record_admin_action(f"act-{written}", "done", caller="x" * chance.randrange(90))
            written += 1
        while (found := read_audit_lines_after(tmp_path, place)) is not None:
            place, lines = found
            read += lines
    acts = [line.split(b'"act":"')[1].split(b'"')[0].decode() for line in read.splitlines()]
    assert acts == [f"act-{number}" for number in range(written)]


def test_unknown_audit_files_are_read_from_the_oldest(tmp_path: Path) -> None:
    AuditLog(tmp_path).record_admin_action("first", "done")
    found = read_audit_lines_after(tmp_path, AuditPosition(1, 5_000))
    assert found is not None
    assert b"first" in found[1]
