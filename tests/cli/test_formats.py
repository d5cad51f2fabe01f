"""``kgserve import`` and ``export`` in foreign formats, with a server and without one."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.notes import read_vault, write_vault
from tests.cli.running import CommandResult, ServerProcessHandle, environment, kgserve
from tests.graph.transfer.formats.conversion_helpers import FIXTURES

LINES = (
    '{"kind":"node","id":"a","type":"t","content":"=1+1\\n\\u0000","attributes":{"n":1,"l":[null]},"tags":["x","y"]}\n'
    '{"kind":"node","id":"b","type":"t","summary":"s","valid_to":"2020-01-01T00:00:00Z"}\n'
    '{"kind":"edge","from":"a","to":"b","relation_type":"R","weight":0.1,"ordinal":2,"attributes":{"k":"v"}}\n'
)
HOLD = """
import sys, kgserve
library = kgserve.open(sys.argv[1], indexes=False)
print("open", flush=True)
sys.stdin.read()
"""


class Command:
    """Runner of commands in a data folder without a server."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, *arguments: object) -> CommandResult:
        return kgserve(*arguments, "--data", self.data)

    def exported(self, store: str) -> list[str]:
        done = self("export", store)
        assert done.code == 0, done
        return sorted(done.out.splitlines())


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder without a server, with one store."""
    data = tmp_path_factory.mktemp("idle")
    (data.parent / "lines.ndjson").write_text(LINES)
    assert kgserve("import", "s", data.parent / "lines.ndjson", "--data", data).code == 0
    return data


@pytest.fixture
def command(idle: Path) -> Command:
    return Command(idle)


@pytest.mark.parametrize("kind", ["csv", "parquet", "graphml"])
def test_round_trip_in_a_folder_without_a_server(kind: str, command: Command, tmp_path: Path) -> None:
    out = command("export", "s", "-o", tmp_path / f"out.{kind}")
    assert (out.code, out.out) == (0, ""), out
    names = [f"out.{kind}"] if kind == "graphml" else [f"out.edges.{kind}", f"out.nodes.{kind}"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    assert all(name in out.err for name in names)
    done = command("import", f"copy-{kind}", tmp_path / f"out.{kind}")
    assert (done.code, "nodes: 2 sent, 2 created" in done.out) == (0, True), done
    assert command.exported(f"copy-{kind}") == command.exported("s")


def test_round_trip_through_a_server(server: ServerProcessHandle, tmp_path: Path) -> None:
    place = ["--server", server.url]
    graphml, folder = tmp_path / "out.graphml", f"{tmp_path / 'new' / 'folder'}/"
    assert kgserve("import", "formats", "-", "--data", server.data, stdin=LINES).code == 0
    assert kgserve("export", "formats", "-o", folder, "--format", "csv", *place).code == 0
    assert sorted(each.name for each in Path(folder).iterdir()) == ["edges.csv", "nodes.csv"]
    assert kgserve("import", "formats-copy", folder, *place).code == 0
    assert kgserve("export", "formats-copy", "-o", graphml, *place).code == 0
    again = kgserve("import", "formats-xml", "-", "--format", "graphml", *place, stdin=graphml.read_text())
    assert again.code == 0, again
    exports = [sorted(kgserve("export", store, *place).out.splitlines()) for store in ("formats", "formats-xml")]
    assert len(exports[0]) == 3
    assert exports[0] == exports[1]


def test_a_vault_is_imported_by_differences_and_exported_as_it_is(command: Command, tmp_path: Path) -> None:
    vault, out = tmp_path / "vault", tmp_path / "out"
    write_vault(vault, 40)
    (vault / "bad.md").write_text("---\na: [\n---\n")
    (vault / "a.md").write_text("[[b]] ![[b]]")
    (vault / "b.md").write_text("b")
    checked = command("import", "vault", vault, "--dry-run")
    assert (checked.code, "nodes: 42 to create, 0 to update, 0 unchanged" in checked.out) == (1, True), checked
    fault = "1 line wrong:\n  bad.md line 3: the front matter is not YAML"
    assert fault.removeprefix("1 line") in checked.err
    assert command("export", "vault").code == 1  # a dry run creates no store
    done = command("import", "vault", vault)
    assert (done.code, "nodes: 42 sent, 42 created" in done.out, fault in done.err) == (1, True, True), done
    (vault / "bad.md").unlink()
    assert command("import", "vault", vault).code == 0
    before = command.exported("vault")
    assert "nothing was written to vault" in command("import", "vault", vault, "--format", "markdown").out
    assert command.exported("vault") == before
    assert command("export", "vault", "--format", "markdown", "-o", out).code == 0
    assert read_vault(out) == read_vault(vault)
    (vault / "b.md").write_bytes(b"\xe9")
    broken = command("import", "vault", vault, "--delete")
    assert (broken.code, "b.md line 1: is not UTF-8" in broken.err, "nothing was deleted" in broken.err) == (1, 1, 1)
    assert command.exported("vault") == before
    (vault / "a.md").write_text("![[b]] [[Unwritten]]")
    (vault / "b.md").unlink()
    (vault / "c.md").write_text("[[a]]")
    kept = command("import", "vault", vault)
    assert "1 notes of the store have no file; --delete deletes them:\n  b" in kept.err, kept
    assert "a.md line 1: there is no note 'Unwritten'" in kept.err
    assert "nodes: 2 sent, 1 created, 1 updated, 40 unchanged" in kept.out
    assert "notes without a file: 1 deleted" in command("import", "vault", vault, "--delete").out
    edges = [row for row in map(msgspec.json.decode, command.exported("vault")) if row.get("from") in {"a", "c"}]
    assert [(row["from"], row["relation_type"], row["to"]) for row in edges] == [("c", "links_to", "a")]
    for wrong in (["--dry-run", tmp_path / "x.csv"], ["--format", "markdown", vault / "a.md"]):
        assert command("import", "vault", *wrong).code == 2
    assert command("export", "vault", "--format", "markdown").code == 2


def test_as_of_and_valid_at(command: Command, tmp_path: Path) -> None:
    (tmp_path / "more.ndjson").write_text('{"kind":"node","id":"c","type":"t"}\n')
    for file in (command.data.parent / "lines.ndjson", tmp_path / "more.ndjson"):
        assert command("import", "moments", file).code == 0
    assert len(command("export", "moments", "--as-of", "1", "-o", "-").out.splitlines()) == 3
    valid = command("export", "moments", "--as-of", "1", "--valid-at", "2024-01-01T00:00:00Z")
    assert [msgspec.json.decode(line)["id"] for line in valid.out.splitlines()] == ["a"]
    assert command("export", "moments", "--as-of", "soon").code == 2


def test_faults_are_reported_by_row_of_the_file(command: Command, tmp_path: Path) -> None:
    nodes, edges = tmp_path / "people.csv", tmp_path / "knows.csv"
    nodes.write_text('id,type,content\na,t,"two\nlines"\nb,t\nc,,x\nd,t,x\n')
    edges.write_text("from,to,relation_type\na,d,R\na,nobody,R\n")
    done = command("import", "faults", edges, nodes)
    assert done.code == 1
    assert "2 rows wrong:\n  people.csv row 3: has 2 cells where the header has 3\n  people.csv row 4: " in done.err
    assert "1 row skipped:\n  knows.csv row 3: " in done.err
    assert len(command.exported("faults")) == 3
    for text, words in ((gzip.compress(b"{}"), "run `gunzip`"), ("{}".encode("utf-16"), "iconv -f UTF-16 -t UTF-8")):
        (tmp_path / "other.ndjson").write_bytes(text)
        done = command("import", "faults", tmp_path / "other.ndjson")
        assert (done.code, words in done.err) == (2, True)
    nodes.write_text('id,type,attributes\na,t,"{""k"": [{""x"": 1, ""x"": 2}]}"\n')
    done = command("import", "faults", nodes)
    assert "people.csv row 2: attributes is not JSON: it has the key `k[0].x` twice" in done.err


def test_a_mapping(command: Command, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("nr;name;age\n1;Ann;41\n2;Bob;x\n")
    mapping = tmp_path / "mapping.toml"
    mapping.write_text(
        'delimiter = ";"\n[[nodes]]\nfile = "people.csv"\nid = "p{nr}"\ntype = "Person"\ncontent = "{name}"\n'
        'attributes = { age = "int" }\n'
    )
    done = command("import", "mapped", "--mapping", mapping)
    assert done.code == 1
    assert "people.csv row 3: age is 'x', which is not an integer" in done.err
    assert '"id":"p1","type":"Person","content":"Ann","attributes":{"age":41}' in command.exported("mapped")[0]
    mapping.write_text('[[nodes]]\nfile = "people.csv"\nid = "{nr}"\ntypo = "Person"\n')
    wrong = command("import", "mapped", "--mapping", mapping)
    assert wrong.code == 2
    assert "nodes[0].typo: Unknown field" in wrong.err


def test_graphiti(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "graphiti.kuzu"
    file.write_bytes(lzma.decompress((FIXTURES / "graphiti.kuzu.xz").read_bytes()))
    done = command("import", "graphiti", file)
    assert (done.code, "edges: 5 sent, 5 created" in done.out) == (0, True), done


def test_the_memory_servers_file_is_recognized_by_its_lines(command: Command, tmp_path: Path) -> None:
    lines = (FIXTURES / "memory-server.jsonl").read_text().splitlines()
    file, out = tmp_path / "memory.json", tmp_path / "out.jsonl"
    file.write_text("\n".join(lines[3:] + lines[:3]))
    assert command("import", "memory", file, "--format", "memory-server").code == 0
    assert command("export", "memory", "-o", out, "--format", "memory-server").code == 0
    assert sorted(out.read_text().splitlines()) == sorted(lines)
    for _ in range(2):
        done = kgserve("import", "memory", "-", "--data", command.data, stdin=out.read_text())
        assert done.out.splitlines()[:2] == [
            "nodes: 3 sent, 0 created, 0 updated, 3 unchanged",
            "edges: 3 sent, 0 created, 0 updated, 3 unchanged",
        ]
    both = command("import", "memory-twice", file, out)
    assert (both.code, "nodes: 6 sent, 4 created" in both.out) == (0, True), both


def test_several_files_of_lines(command: Command, tmp_path: Path) -> None:
    second = tmp_path / "2.ndjson"
    second.write_text('\n{"kind":"node","id":"c","type":"t"}\n{"kind":"node"}\n')
    done = command("import", "several", command.data.parent / "lines.ndjson", second)
    assert done.code == 1
    assert "  2.ndjson line 3: " in done.err
    assert len(command.exported("several")) == 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("import", "s"), "Specify the FILEs"),
        (("import", "s", "-", "--format", "parquet"), "cannot be read from standard input"),
        (("import", "s", "-", "x"), "`-` cannot be combined"),
        (("import", "s", "/no/such.csv"), "/no/such.csv"),
        (("import", "s", "/", "--format", "graphml"), "is a folder"),
        (("export", "s", "--format", "csv"), "two files; specify them with -o"),
        (("export", "s", "-o", "/"), "is a folder"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], reason: str, command: Command) -> None:
    refused = command(*arguments)
    assert (refused.code, refused.out) == (2, ""), refused
    assert reason in refused.err


def test_a_missing_store_leaves_no_file(command: Command, tmp_path: Path) -> None:
    done = command("export", "nothing", "-o", tmp_path / "out.csv")
    assert done.code == 1
    assert "nothing" in done.err
    assert list(tmp_path.iterdir()) == []


def test_an_invalid_import_file_is_reported_with_its_line(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "cut.graphml"
    file.write_text('<graphml><graph>\n<node id="a"/>\n<node id="b">')
    done = command("import", "cut", file)
    assert done.code == 2
    assert "cut.graphml line 3: is not well-formed XML" in done.err


def test_waiting_for_the_indexes_of_a_folder(command: Command, tmp_path: Path) -> None:
    done = command("import", "waiting", command.data.parent / "lines.ndjson", "--wait-index")
    assert done.code == 0, done
    assert (command.data / "waiting_memory" / "views" / "keyword").is_dir()
    assert not (command.data / "s_memory" / "views" / "keyword").exists()


def test_a_folder_locked_by_another_process_is_rejected(tmp_path: Path) -> None:
    lines = tmp_path / "lines.ndjson"
    lines.write_text(LINES)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        refused = Command(tmp_path / "data")("import", "s", lines)
        holder.kill()
    assert refused.code == 1
    assert f"is in use by process {holder.pid}" in refused.err
