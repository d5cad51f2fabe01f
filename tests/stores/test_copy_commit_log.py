"""Commit log of a copy, whose writer thread may plan a caller's write while a frame of the owner is applied."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typing_extensions import override

from kgserve.errors import Conflict, KgserveError
from kgserve.storage.journal.journal import encode_journal_frame, list_journal_segments, read_journal_segment_frames
from kgserve.storage.model.change_set import ChangeSet
from kgserve.stores.local_placement import CopyCommitLog
from tests.storage.journal.history import journal_of, nodes


class RefusingCopyLog(CopyCommitLog):
    @override
    def build_write_refusal(self) -> KgserveError:
        return Conflict("read-only")


class InterruptedCopy:
    """Store that gets a write of a caller while it applies a frame."""

    def __init__(self, commits: CopyCommitLog, write: list[ChangeSet]) -> None:
        self.commits = commits
        self.write = write

    def follow(self, changes: list[ChangeSet]) -> None:
        with pytest.raises(Conflict, match="read-only"):
            self.commits.append(self.write)
        self.commits.append(changes)


def test_a_write_during_an_applied_frame_is_refused(tmp_path: Path) -> None:
    first, second = nodes(2)
    journal = journal_of(tmp_path / "copy", [first])
    owner = journal_of(tmp_path / "owner", [first])
    owner.append([second])
    owner.close()
    *_, frame = read_journal_segment_frames(list_journal_segments(tmp_path / "owner")[0], 1)
    commits = RefusingCopyLog(journal)
    write = [msgspec.structs.replace(second, time=second.time + 1)]
    commits.apply_frame(InterruptedCopy(commits, write), frame, encode_journal_frame([second]))
    with pytest.raises(Conflict, match="read-only"):
        commits.append(write)
    assert list(journal.read(0)) == [first, second]
    journal.close()
