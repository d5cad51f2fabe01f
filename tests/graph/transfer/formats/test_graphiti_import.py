from __future__ import annotations

import hashlib
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kuzu
import pytest

from kgserve.errors import Conflict, InvalidInput
from kgserve.graph.transfer.formats.graphiti_import import read_graphiti
from kgserve.projections.cypher_engine.driver.foreign_kuzu_file import open_foreign_kuzu_file
from tests.graph.transfer.formats.conversion_helpers import FIXTURES, Row, collect_rows

HOLD = "import kuzu, sys; database = kuzu.Database(sys.argv[1]); print('open', flush=True); sys.stdin.read()"


@pytest.fixture
def graphiti(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "graphiti.kuzu"
    path.write_bytes(lzma.decompress((FIXTURES / "graphiti.kuzu.xz").read_bytes()))
    before = digest(path)
    yield path
    assert digest(path) == before
    assert sorted(each.name for each in tmp_path.iterdir() if each.suffix != ".wal") == ["graphiti.kuzu"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rows_of(path: Path) -> list[Row]:
    with open_foreign_kuzu_file(path) as file:
        rows, faults = collect_rows(read_graphiti(path.name, file.tables, file.rows))
    assert faults == []
    return rows


def test_graphiti_file(graphiti: Path) -> None:
    rows = rows_of(graphiti)
    nodes = {row["id"]: row for row in rows if row["kind"] == "node"}
    assert nodes.keys() == {"e-alice", "e-acme", "e-globex", "p-1", "c-1"}
    alice = nodes["e-alice"]
    assert {alice["type"], *alice["tags"]} == {"Person", "Engineer"}
    assert (alice["content"], alice["summary"]) == ("Alice", "Alice is an engineer.")
    assert alice["attributes"] == {"group_id": "team-a", "age": 41, "languages": ["de", "en"]}
    assert alice["created_at"] == "2024-01-01T00:00:00Z"
    episode = nodes["p-1"]
    assert (episode["type"], episode["valid_from"]) == ("Episode", "2024-06-01T00:00:00Z")
    assert episode["content"] == 'Alice: "I work at Globex now"'
    assert nodes["c-1"]["type"] == "Community"
    assert not any("embedding" in name for row in rows for name in row["attributes"])


def test_graphiti_facts_are_edges_with_validity(graphiti: Path) -> None:
    edges = {(row["from"], row["to"], row["relation_type"]): row for row in rows_of(graphiti) if row["kind"] == "edge"}
    assert edges.keys() == {
        ("e-alice", "e-acme", "WORKS_AT"),
        ("e-alice", "e-acme", "WORKS_AT (2)"),
        ("e-alice", "e-globex", "WORKS_AT"),
        ("p-1", "e-alice", "MENTIONS"),
        ("p-1", "e-globex", "MENTIONS"),
    }
    ended = edges["e-alice", "e-acme", "WORKS_AT"]
    assert (ended["valid_from"], ended["valid_to"]) == ("2020-01-01T00:00:00Z", "2024-06-01T00:00:00Z")
    assert ended["attributes"] == {
        "uuid": "f-1",
        "fact": "Alice works at Acme",
        "group_id": "team-a",
        "episodes": ["p-1"],
        "sure": True,
        "created_at": "2024-07-01T00:00:00Z",
        "expired_at": "2024-07-01T00:00:00Z",
    }
    before = edges["e-alice", "e-acme", "WORKS_AT (2)"]
    assert (before["valid_to"], before["attributes"]["name"]) == ("2017-01-01T00:00:00Z", "WORKS_AT")
    assert "valid_to" not in edges["e-alice", "e-globex", "WORKS_AT"]


def test_graphiti_reads_write_ahead_log(graphiti: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    copy = work / "graphiti.kuzu"
    copy.write_bytes(graphiti.read_bytes())
    with kuzu.Database(str(copy), max_db_size=1 << 36) as database, kuzu.Connection(database) as connection:  # noqa: TID251
        connection.execute("CALL force_checkpoint_on_close=false")
        connection.execute("CREATE (:Entity {uuid: 'e-new', name: 'New', group_id: 'g', attributes: '{}'})")
    log = work / "graphiti.kuzu.wal"
    before = (digest(copy), digest(log))
    assert "e-new" in {row.get("id") for row in rows_of(copy)}
    assert (digest(copy), digest(log)) == before
    for each in work.iterdir():
        each.unlink()
    work.rmdir()


def test_graphiti_file_in_use_is_rejected(graphiti: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(graphiti)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(Conflict, match="is open in another process"), open_foreign_kuzu_file(graphiti):
            pass
        holder.kill()


def test_graphiti_rejects_other_versions_and_files(graphiti: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.wal"
    whole = bytearray(graphiti.read_bytes())
    whole[4:12] = (38).to_bytes(8, "little")
    other.write_bytes(whole)
    with (
        pytest.raises(InvalidInput, match="has storage version 38, but this engine reads 39"),
        open_foreign_kuzu_file(other),
    ):
        pass
    other.write_bytes(b"SQLite format 3\0")
    with pytest.raises(InvalidInput, match=r"is not a Kùzu 0\.11 database file"), open_foreign_kuzu_file(other):
        pass


def test_graphiti_rejects_other_kuzu_files(tmp_path: Path) -> None:
    path = tmp_path / "x.kuzu"
    with kuzu.Database(str(path), max_db_size=1 << 36) as database, kuzu.Connection(database) as connection:  # noqa: TID251
        connection.execute("CREATE NODE TABLE City(name STRING PRIMARY KEY)")
    with (
        open_foreign_kuzu_file(path) as file,
        pytest.raises(InvalidInput, match="not Graphiti's: it has the tables City"),
    ):
        read_graphiti(path.name, file.tables, file.rows)
