"""Bridges whose server is killed, stopped and lost while they work; the long form is `python -m bench.bridge_chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bridge_chaos
from tests.cli.mcp_stdio.editor import ending
from tests.fuzzing import is_thorough


@pytest.mark.timeout(300)
@pytest.mark.skipif(not is_thorough(), reason="each of killing, stopping and losing has a quick test of its own here")
def test_nothing_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bridge_chaos.SETTINGS.items():
        monkeypatch.setenv(name, value)
    with ending(tmp_path / "data"):
        report = bridge_chaos.run(tmp_path, calls=120, seed=4)
    assert not report.wrong, (report.lines, report.notes)
