"""Import and export of lines."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgserve.errors import InvalidInput
from kgserve.graph.answers import ImportAnswer
from kgserve.graph.transfer.columnar_ndjson_decoder import decode_simple_ndjson_lines
from kgserve.graph.transfer.formats.ndjson_exchange_lines import MAX_LINE_BYTES
from kgserve.graph.transfer.import_export import (
    ARCHIVE_FORMAT,
    SMALL_IMPORT_BLOCK_BYTES,
    SMALL_IMPORT_BLOCK_LINES,
    ForeignFormatImport,
    StreamingImport,
    open_store_export_stream,
)
from kgserve.storage.model.change_feed_events import MAX_SINGLE_EVENT_ROWS
from kgserve.storage.model.store_rows_digest import update_digest_for_row_changes
from kgserve.storage.model.write_batch import WriteBatch
from kgserve.storage.rows.current_rows import DeltaMergeLimits
from kgserve.stores.bulk_insert import plan_bulk_insert_of_new_rows
from kgserve.stores.pool import StorePool
from tests.graphs import graph_of
from tests.stores.writing import assert_whole, settings, write

NODE = b'{"kind":"node","id":"%s","type":"t"}'


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[StorePool]:
    with StorePool(settings(tmp_path)) as opened:
        yield opened


def imported(pool: StorePool, *parts: bytes, store: str = "s") -> ImportAnswer:
    importer = StreamingImport(graph_of(pool, store))
    try:
        for part in parts:
            if importer.feed(part):
                importer.flush()
        return importer.finish()
    finally:
        importer.abort()


def exported(pool: StorePool, store: str = "s") -> list[bytes]:
    with open_store_export_stream(graph_of(pool, store)) as stream:
        return sorted(b"".join(stream).splitlines())


def lines(*texts: bytes, end: bytes = b"\n") -> bytes:
    return end.join(texts) + end


def test_import_reports_repeated_keys(pool: StorePool) -> None:
    edge = b'{"kind":"edge","from":"a","to":"b","relation_type":"R","weight":%d}'
    answer = imported(
        pool,
        lines(NODE % b"a", NODE % b"b", edge % 1, b'{"kind":"node","id":"a","type":"t","content":"x"}', edge % 2),
        lines(
            NODE % b"b", *[NODE % b"%d" % number for number in range(SMALL_IMPORT_BLOCK_LINES)], edge % 3, NODE % b"7"
        ),
    )
    assert (answer.ok, answer.error_count, answer.merged_count) == (True, 0, 5)
    assert [(each.line, each.earlier_line) for each in answer.merged] == [
        (4, 1),
        (5, 3),
        (6, 2),
        (SMALL_IMPORT_BLOCK_LINES + 7, 3),
        (SMALL_IMPORT_BLOCK_LINES + 8, 14),
    ]
    assert answer.merged[0].message == 'node "a": where both lines set a field, the later one wins'
    assert answer.merged[1].message.startswith('edge "a" "R" "b": ')


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense", b"[]", b"1", b'"x"', b"{}", b'{"kind":"node"}', b'{"kind":"other","id":"x"}',
        b'{"id":"x","type":"t"}',
        NODE % b"x" + NODE % b"y", NODE % b"x" + b",", b'{"kind":"node","id":"x","type":"t","more":1}', b"\xff\xfe",
        b'{"kind":"node","id":"\\ud800","type":"t"}', b'{"kind":"node","id":"","type":"t"}', NODE % (b"x" * 513),
        b'{"kind":"edge","from":"a","to":"b"}', b'{"kind":"node","id":"x","type":"t","version":0}', b"[" * 100_000,
        b'{"kind":"node","id":"x","type":"t","attributes":{"n":9223372036854775808}}',
        b'{"kind":"node","id":"x","type":"t","created_at":"yesterday"}',
        b'{"kind":"node","id":"x","type":"t","created_at":"9999-12-31T23:59:59-01:00"}',
        b'{"kind":"edge","from":"a","to":"a","relation_type":"r","weight":NaN}',
        b'{"kind":"edge","from":"a","to":"a","relation_type":"r","attributes":{"updated_at":1}}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_import_reports_faulty_line_and_imports_the_others(pool: StorePool, bad: bytes, end: bytes) -> None:
    answer = imported(pool, lines(NODE % b"a", b"", b"  ", bad, NODE % b"b", end=end))
    assert [error.line for error in answer.errors] == [4]
    assert answer.errors[0].message
    assert (answer.ok, answer.lines, answer.error_count, answer.nodes_created) == (False, 5, 1, 2)
    with pool.lease("s") as store:
        assert_whole(store)


def test_import_accepts_last_line_without_newline(pool: StorePool) -> None:
    answer = imported(pool, NODE % b"a" + b"\n" + NODE % b"b")
    assert (answer.ok, answer.lines, answer.nodes_created) == (True, 2, 2)


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n\r\n"])
def test_empty_import(pool: StorePool, data: bytes) -> None:
    answer = imported(pool, data)
    assert (answer.ok, answer.nodes_sent, answer.lines, answer.sequence) == (True, 0, data.count(b"\n"), 0)


def test_import_accepts_arbitrary_chunks(pool: StorePool) -> None:
    data = lines(NODE % b"a", NODE % "ü😀".encode(), b"bad", b'{"kind":"edge","from":"a","to":"x","relation_type":"r"}')
    importer = StreamingImport(graph_of(pool, "s"))
    for offset in range(len(data)):
        importer.feed(data[offset : offset + 1])
        importer.flush()
    answer = importer.finish()
    assert (answer.nodes_created, answer.lines) == (2, 4)
    assert [error.line for error in answer.errors] == [3]
    assert [(skipped.line, skipped.message) for skipped in answer.edges_skipped] == [(4, 'no such node: "x"')]


def rows_of(size: int, first: int, count: int) -> bytes:
    line = '{"kind":"node","id":"%d","type":"t","content":"%s"}'
    return lines(*((line % (number, "x" * size)).encode() for number in range(first, first + count)))


def test_import_throttle_commits_small_blocks_one_by_one(pool: StorePool) -> None:
    asking = True
    importer = StreamingImport(graph_of(pool, "s"), others=lambda: asking)
    small = rows_of(SMALL_IMPORT_BLOCK_BYTES // SMALL_IMPORT_BLOCK_LINES, 0, SMALL_IMPORT_BLOCK_LINES)
    assert not importer.feed(small[:-1])
    assert importer.feed(small[-1:] + NODE % b"rest")
    importer.flush()
    with pool.lease("s") as store:
        assert store.state.nodes == SMALL_IMPORT_BLOCK_LINES
    assert not importer.feed(b" ")  # only the new part of an incomplete line counts
    asking = False
    assert not importer.feed(
        b"\n" + rows_of(SMALL_IMPORT_BLOCK_BYTES // SMALL_IMPORT_BLOCK_LINES, 5_000, SMALL_IMPORT_BLOCK_LINES)
    )
    assert importer.finish().nodes_created == 2 * SMALL_IMPORT_BLOCK_LINES + 1


def test_import_throttle_batches_enough_rows_for_bulk_event(pool: StorePool) -> None:
    importer = StreamingImport(graph_of(pool, "s"), others=lambda: 1)
    size = 4 * SMALL_IMPORT_BLOCK_BYTES // MAX_SINGLE_EVENT_ROWS
    assert not importer.feed(rows_of(size, 0, MAX_SINGLE_EVENT_ROWS))
    assert importer.feed(rows_of(size, MAX_SINGLE_EVENT_ROWS, 1))
    importer.abort()


@pytest.mark.parametrize(("asking", "commits"), [(False, 1), (True, 3)])
def test_converted_import_is_throttled(pool: StorePool, asking: bool, commits: int) -> None:
    content = "words " * (SMALL_IMPORT_BLOCK_BYTES // SMALL_IMPORT_BLOCK_LINES // 6)
    count = 5 * SMALL_IMPORT_BLOCK_LINES // 2
    rows = [f"{number},t,{content}" for number in range(count)]
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("nodes.csv", "\n".join(["id,type,content", *rows]))
        archive.writestr("edges.csv", "from,to,relation_type\n")
    taken = ForeignFormatImport(graph_of(pool, "s"), ARCHIVE_FORMAT, lambda: asking)
    taken.write(body.getvalue())
    answer = taken.finish()
    assert (answer.nodes_created, answer.sequence) == (count, commits)


def test_import_stops_at_line_over_limit_and_keeps_earlier_lines(pool: StorePool) -> None:
    with pytest.raises(InvalidInput, match="line 2 is longer"):
        imported(pool, lines(NODE % b"a"), b"x" * (MAX_LINE_BYTES + 1), b"x")
    assert len(exported(pool)) == 1


def test_import_reports_line_of_new_node_without_type(pool: StorePool) -> None:
    answer = imported(
        pool, lines(b"", NODE % b"a", b'{"kind":"node","id":"b"}', b'{"kind":"node","id":"a","content":"x"}')
    )
    assert [error.line for error in answer.errors] == [3]


def test_import_of_export_is_equal_and_idempotent(pool: StorePool) -> None:
    odd = ["a", "ü😀", "it's", 'say \\"hi\\"', "nul\\u0000", "line\\nbreak", "\u2028"]
    data = [
        f'{{"kind":"node","id":"{i}","type":"t","content":"{i}","attributes":{{"b":[1.5,null],"a":"{i}"}}}}'
        for i in odd
    ]
    data += [f'{{"kind":"edge","from":"{i}","to":"a","relation_type":"r","weight":0.1}}' for i in odd]
    imported(pool, lines(*(text.encode() for text in data)))
    imported(pool, lines(b'{"kind":"node","id":"a","content":"second"}'))
    first = exported(pool)
    assert len(first) == len(data)
    answer = imported(pool, lines(*sorted(first, reverse=True)), store="copy")
    assert (answer.ok, answer.nodes_created, answer.edges_created) == (True, len(odd), len(odd))
    assert exported(pool, "copy") == first
    with pool.lease("copy") as store:
        before = store.journal.bytes
        again = imported(pool, lines(*first), store="copy")
        assert (again.nodes_unchanged, again.edges_unchanged, again.sequence) == (len(odd), len(odd), answer.sequence)
        assert store.journal.bytes == before
        assert_whole(store)


def test_export_leaves_no_files(pool: StorePool) -> None:
    imported(pool, lines(NODE % b"a"))
    stream = open_store_export_stream(graph_of(pool, "s"))
    imported(pool, lines(NODE % b"later"))
    assert b"later" not in b"".join(stream)
    stream.close()
    stream.close()
    with pool.lease("s") as store:
        assert not store.rows._epoch.readers


MANY = 1_500


def edge(number: int, more: str = "") -> bytes:
    return f'{{"kind":"edge","from":"a","to":"n{number}","relation_type":"r"{more}}}'.encode()


def test_import_writes_only_changed_edges(pool: StorePool) -> None:
    nodes = [NODE % b"a", *(NODE % f"n{number}".encode() for number in range(MANY))]
    plain = [edge(number) for number in range(MANY)]
    imported(pool, lines(*nodes, *plain))
    other = {
        3: edge(3, ',"weight":2.0'),
        4: edge(4, ',"attributes":{"k":1}'),
        5: edge(5, ',"ordinal":7'),
        6: edge(6, ',"valid_from":"2026-01-01T00:00:00Z"'),
    }
    # One edge is repeated: first unchanged, then changed.
    sent = [*(other.get(number, line) for number, line in enumerate(plain)), edge(8, ',"weight":3.0')]
    with pool.lease("s") as store:
        store.rows.fold()
    answer = imported(pool, lines(*sent))
    assert (answer.edges_updated, answer.edges_unchanged, answer.edges_created) == (5, MANY - 5, 0)
    found = {line for line in exported(pool) if b'"edge"' in line and b'"version":2' in line}
    assert {line.partition(b'"to":"')[2].partition(b'"')[0] for line in found} == {b"n3", b"n4", b"n5", b"n6", b"n8"}
    with pool.lease("s") as store:
        assert_whole(store)


def test_reimport_restores_changed_and_deleted_edges(pool: StorePool) -> None:
    nodes = [NODE % b"a", *(NODE % f"n{number}".encode() for number in range(MANY))]
    plain = [edge(number) for number in range(MANY)]
    imported(pool, lines(*nodes, *plain))
    imported(pool, lines(edge(1, ',"weight":5.0'), edge(2, ',"attributes":{"k":1}')))
    with pool.lease("s") as store:
        write(store, WriteBatch(delete_edges=[("a", "n7", "r")], delete_nodes=["n9"]))
    again = imported(pool, lines(*plain))
    assert (again.edges_created, again.edges_skipped_count) == (1, 1)
    assert again.edges_unchanged == MANY - 2
    weighed = imported(pool, lines(*(edge(number, ',"weight":1.0') for number in range(MANY))))
    assert (weighed.edges_updated, weighed.edges_unchanged) == (1, MANY - 2)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (NODE % b"a" + b" " + NODE % b"b" + b"\n\n", 1),
        (b'{"kind":"node",\n"id":"a","type":"t"}\n' + NODE % b"b" + NODE % b"c" + b"\n", 3),
        (NODE % b"a" + b"\n \n" + NODE % b"b" + b"\r\n", 0),
    ],
)
def test_import_line_is_one_row(pool: StorePool, text: bytes, wrong: int) -> None:
    answer = imported(pool, text)
    assert answer.error_count == wrong
    assert answer.nodes_created == (0 if wrong else 2)


@pytest.mark.parametrize(
    ("line", "is_bulk"),
    [
        (NODE % b"new", True),
        (b'{"kind":"edge","from":"a","to":"b","relation_type":"R"}', True),
        (b'{"kind":"edge","from":"a","to":"b","relation_type":"KNOWN","weight":2}', False),
        (NODE % b"a", False),
        (b'{"kind":"node","id":"new","type":"t","attributes":{"n":9223372036854775808}}', False),
        (b'{"kind":"edge","from":"a","to":"missing","relation_type":"R"}', False),
        (b'{"kind":"edge","from":"a","to":"b","relation_type":"MERGED_INTO"}', False),
    ],
)
def test_import_creates_new_rows_in_bulk(pool: StorePool, line: bytes, is_bulk: bool) -> None:
    edge = b'{"kind":"edge","from":"a","to":"b","relation_type":"KNOWN"}'
    imported(pool, lines(NODE % b"a", NODE % b"b", edge))
    with pool.lease("s") as store:
        store.rows.limits = DeltaMergeLimits(rows=1)
        plain = decode_simple_ndjson_lines(line + b"\n", 1, 0)
        assert (plain is not None and plan_bulk_insert_of_new_rows(store.rows, plain) is not None) == is_bulk


def test_import_falls_back_to_delta_during_merge(pool: StorePool) -> None:
    imported(pool, lines(NODE % b"a"))
    before = exported(pool)
    heard: list[None] = []
    with pool.lease("s") as store, store.folding.stage_deletion():
        store.rows.limits = DeltaMergeLimits(rows=1)
        base, recorded = store.rows.base_sequence, store.feed.recorded
        unlisten = store.feed.listen(lambda: heard.append(None))
        answer = imported(pool, lines(NODE % b"b", b'{"kind":"edge","from":"a","to":"b","relation_type":"R"}'))
        assert (answer.nodes_created, answer.edges_created, answer.sequence) == (1, 1, 2)
        assert store.rows.base_sequence == base
        assert store.feed.recorded == recorded + 2
        assert len(exported(pool)) == len(before) + 2
        unlisten()
        with store.reading() as rows:
            assert (
                update_digest_for_row_changes(
                    update_digest_for_row_changes(0, rows.all_nodes(), ()), rows.all_edges(), ()
                )
                == store.state.digest
            )


def test_import_merges_delta_before_bulk(pool: StorePool) -> None:
    imported(pool, lines(NODE % b"b", NODE % b"d", b'{"kind":"edge","from":"d","to":"b","relation_type":"R"}'))
    with pool.lease("s") as store:
        assert store.rows.base_sequence == 0
        store.rows.limits = DeltaMergeLimits(rows=1)
        edge = b'{"kind":"edge","from":"%s","to":"%s","relation_type":"R"}'
        imported(pool, lines(NODE % b"c", NODE % b"a", edge % (b"d", b"c"), edge % (b"a", b"b")))
        assert store.rows.base_sequence == 2
        with store.reading() as rows:
            assert [row.id for row in rows.all_nodes()] == ["a", "b", "c", "d"]
            assert [row.key[:2] for row in rows.all_edges()] == [("a", "b"), ("d", "b"), ("d", "c")]
            assert (
                update_digest_for_row_changes(
                    update_digest_for_row_changes(0, rows.all_nodes(), ()), rows.all_edges(), ()
                )
                == store.state.digest
            )


@pytest.mark.parametrize("texts", [r"say \":x", r"\":\":", "x : " * 2000])
def test_a_repeated_key_is_noticed_next_to_texts_that_look_like_keys(texts: str) -> None:
    lines = [f'{{"kind":"node","id":"n{at}","type":"t","content":"{texts}"}}\n'.encode() for at in range(5)]
    found = decode_simple_ndjson_lines(b"".join(lines), 5, 1)
    assert found is not None
    assert len(found.ids) == 5
    for twice in (
        b'{"kind":"node","id":"a","id":"b","type":"t"}\n',
        b'{"kind":"node","id" :"a","id":"b","type":"t"}\n',
    ):
        assert decode_simple_ndjson_lines(b"".join([*lines, twice]), 6, 1) is None
