"""The ten tasks of an agent succeed at the first try, with few tokens."""

from __future__ import annotations

from pathlib import Path

from bench import agent_tokens
from tests.embedding.prepared import model_settings


def test_ten_tasks_succeed_within_their_tokens(tmp_path: Path) -> None:
    chosen: dict[str, object] = {"embedding_provider": "local", "models_dir": model_settings().models_dir}
    report = agent_tokens.tokens(chosen, tmp_path)
    assert not report.wrong, report.notes
    figures = {line.what.partition(",")[0]: line for line in report.lines}
    assert figures["tasks at the first try"].figure == "10 of 10"
    assert figures["structured"].figure == "0"
    # Without an encoder of cl100k the figures are estimated within a tenth.
    assert int(figures["text"].figure.replace(",", "")) <= 1_600
    assert all(line.met for line in report.lines if line.what.startswith(("tools of memory:", "tools of default:")))
