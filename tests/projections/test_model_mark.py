from __future__ import annotations

from pathlib import Path

import pytest

from kgserve.projections.text_indexes import read_text_index_model_name, write_text_index_model_name

NAME = "sentence-transformers/all-MiniLM-L6-v2"


def test_the_model_name_is_read_back(tmp_path: Path) -> None:
    write_text_index_model_name(tmp_path / "model", NAME)
    assert read_text_index_model_name(tmp_path / "model") == NAME


def test_files_of_older_versions_contain_only_the_name(tmp_path: Path) -> None:
    (tmp_path / "model").write_text(f"{NAME}\n")
    assert read_text_index_model_name(tmp_path / "model") == NAME


def test_a_truncated_model_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "model"
    write_text_index_model_name(path, NAME)
    content = path.read_bytes()
    for at in range(len(content) - 1):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :])
        assert read_text_index_model_name(path) is None, at
    for end in range(len(content) - 2):
        path.write_bytes(content[:end])
        assert read_text_index_model_name(path) is None, end


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"two words", b"\0\0", b"a\nb", b"x" * 300])
def test_a_foreign_model_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model").write_bytes(content)
    assert read_text_index_model_name(tmp_path / "model") is None
    assert read_text_index_model_name(tmp_path / "none-such") is None
