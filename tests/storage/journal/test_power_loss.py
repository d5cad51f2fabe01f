"""Durable frames survive a power loss that keeps only what was synced."""

from __future__ import annotations

from pathlib import Path

from tests.power_loss_recording import RecordedPrograms, needs_compiler
from tests.storage.journal.history import nodes
from tests.storage.journal.test_journal import contents

WORK = """
from kgserve.storage.journal.journal import Journal, encode_journal_frame
from tests.storage.journal.history import nodes
changes = nodes(60, 200)
journal = Journal.create(data, 1000)
for change in changes[:30]:
    journal.append([change])
    say(journal.last)
for change in changes[30:]:
    journal.append_frame(encode_journal_frame([change]), change.sequence, change.sequence, durable=False)
journal.sync()
say(journal.last)
"""


@needs_compiler
def test_durable_frames_survive_power_loss_in_every_segment(tmp_path: Path) -> None:
    recorded, changes = RecordedPrograms(tmp_path), nodes(60, 200)
    recorded.run(WORK, environment={})
    said = {when: int(what) for what, when in recorded.said.items()}
    assert len(said) == 31
    for at in recorded.states(dict.fromkeys(said, "nothing more")):
        assert contents(recorded.left) == changes[: said[at]]
