"""Zip archives of other programs, and malicious ones."""

from __future__ import annotations

import random
import zipfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.transfer.formats.import_export_files import extract_import_zip

NODES = "id,type\na,t\n"


def packed(*members: tuple[str, str], method: int = zipfile.ZIP_DEFLATED) -> BytesIO:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, text in members:
            archive.writestr(name, text)
    file.seek(0)
    return file


@pytest.mark.parametrize("name", ["nodes.csv", "a/b/nodes.csv", "work.nodes.csv", "../../nodes.csv", "/etc/nodes.csv"])
def test_archive_member_names_cannot_escape_folder(name: str, tmp_path: Path) -> None:
    kind, paths = extract_import_zip(packed((name, NODES)), tmp_path)
    assert (kind, paths) == ("csv", [tmp_path / "nodes.csv"])
    assert [path.name for path in tmp_path.iterdir()] == ["nodes.csv"]
    assert paths[0].read_text() == NODES


def test_archive_ignores_macos_metadata(tmp_path: Path) -> None:
    _, paths = extract_import_zip(packed(("__MACOSX/._nodes.csv", "junk"), ("nodes.csv", NODES)), tmp_path)
    assert paths[0].read_text() == NODES


def test_invalid_archives_are_rejected(tmp_path: Path) -> None:
    for members in ((), (("x.txt", ""),), (("nodes.csv", NODES), ("edges.parquet", ""))):
        with pytest.raises(InvalidInput, match="the archive must contain"):
            extract_import_zip(packed(*members), tmp_path)
    with pytest.raises(InvalidInput, match="use deflate"):
        extract_import_zip(packed(("nodes.csv", NODES), method=zipfile.ZIP_LZMA), tmp_path)


def test_corrupt_archive_is_rejected_with_message(tmp_path: Path) -> None:
    whole = packed(("nodes.csv", NODES * 50), ("edges.csv", "from,to,relation_type\n")).getvalue()
    source = random.Random(1)
    for _ in range(400):
        text = bytearray(whole)
        for _ in range(source.randint(1, 3)):
            text[source.randrange(len(text))] = source.randrange(256)
        with suppress(InvalidInput):
            extract_import_zip(BytesIO(text), tmp_path)
