"""Search for words in all files of a store on disk, decompressed where needed."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import pyarrow.parquet as pq
import tantivy


def traces(root: Path, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the words found, by file: as bytes in three encodings, decompressed, and as tantivy terms."""
    wanted = [*words]
    found: dict[str, list[str]] = {}
    for path in sorted(each for each in root.rglob("*") if each.is_file()):
        # Index files may disappear meanwhile.
        with suppress(FileNotFoundError):
            texts = [path.read_bytes(), *_unpacked(path)]
            if here := [word for word in wanted if any(_is_in(word, text) for text in texts)]:
                found[str(path.relative_to(root))] = here
    for folder in root.glob("views/*keyword"):
        if here := [word for word in wanted if _is_term(folder, word)]:
            found[f"{folder.name} (terms)"] = here
    return found


def _is_in(word: str, text: bytes) -> bool:
    lowered = text.lower()
    return any(word.lower().encode(encoding) in lowered for encoding in ("utf-8", "utf-16-le", "utf-16-be"))


def _unpacked(path: Path) -> list[bytes]:
    if path.suffix == ".parquet":
        return [str(pq.read_table(path).to_pylist()).encode()]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            return ["\n".join(connection.iterdump()).encode(), *_blobs(connection)]
    return _inflated(path.read_bytes())


def _blobs(connection: sqlite3.Connection) -> list[bytes]:
    """Return the binary values of all tables, which may span several pages, also decompressed."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    values = (value for name in tables for row in connection.execute(f'SELECT * FROM "{name}"') for value in row)  # noqa: S608
    found = [value for value in values if isinstance(value, bytes)]
    return found + [text for value in found for text in _inflated(value)]


def _inflated(data: bytes) -> list[bytes]:
    """Return what any zlib stream in some bytes contains, wherever it begins."""
    found: list[bytes] = []
    for start in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", data):
        with suppress(zlib.error):
            found.append(zlib.decompressobj().decompress(data[start.start() :]))
    return found


def _is_term(folder: Path, word: str) -> bool:
    """Return whether an index has a word as a term, including deleted documents."""
    if not (folder / "meta.json").exists():
        return False
    index = tantivy.Index.open(str(folder))
    stem = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.lowercase())
    terms = stem.filter(tantivy.Filter.stemmer("english")).build().analyze(word)
    searcher = index.searcher()
    stored = (searcher.doc(address) for _, address in searcher.search(tantivy.Query.all_query(), 10_000).hits)
    if any(_is_in(word, str(each.to_dict()).encode()) for each in stored):
        return True
    return any(searcher.doc_freq(field, term) for field in ("content", "name", "summary") for term in terms)
