"""The keyword index of one store: tantivy, BM25 over content and id, English stemming.

Every `write` leaves the folder sealed with the checksums of its files; a folder that is not as it was sealed (killed in
between, damaged, from another version) is emptied when it is opened, and filled again by whoever owns the cursor.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Generator, Iterable
from pathlib import Path

import msgspec
import tantivy

from kgserve.errors import InvalidInput
from kgserve.model.query_text import word_weights
from kgserve.views import manifest
from kgserve.views.filters import ANYTHING, Filter

KIND = "keyword 2"
_ANALYZER = "text"
_WRITER_BYTES = 15_000_000
_BULK_BYTES = 120_000_000
_LONGEST_TOKEN = 100


class Text(msgspec.Struct, frozen=True):
    """An entity as the index takes it."""

    id: str
    type: str
    content: str


class KeywordHit(msgspec.Struct, frozen=True):
    """An entity that holds words of the query, with its BM25 score."""

    id: str
    score: float


class KeywordIndex:
    """Searches may run in any thread beside one writer."""

    def __init__(self, folder: Path) -> None:
        """Open a folder as it was sealed, or an empty index in its place; ``sequence`` is then 0."""
        self._folder = folder
        self._analyzer = _analyzer()
        self._lock = threading.Lock()
        found = manifest.read(folder, KIND) if folder.is_dir() else None
        self.sequence = found.sequence if found else 0
        self.fresh = found is None
        if found is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        self._checksums = manifest.Checksums()
        self._schema = _schema()
        self._index = tantivy.Index(self._schema, path=str(folder), reuse=found is not None)
        self._index.register_tokenizer(_ANALYZER, self._analyzer)
        self._index.reload()

    def __len__(self) -> int:
        return self._index.searcher().num_docs

    def write(self, put: Iterable[Text], removed: Iterable[str], sequence: int, *, bulk: bool = False) -> None:
        """Replace and remove entities, and note the commit that this brings the index to.

        Entities are taken one by one; ``bulk`` lets it use more memory for many of them.
        """
        with self._writing(_BULK_BYTES if bulk else _WRITER_BYTES) as writer:
            for node_id in removed:
                writer.delete_documents_by_term("id", node_id)
            for entity in put:
                writer.delete_documents_by_term("id", entity.id)
                writer.add_document(_document(entity))
        manifest.seal(self._folder, KIND, sequence, checksums=self._checksums)
        self._index.reload()
        self.sequence, self.fresh = sequence, False

    def clear(self) -> None:
        """Forget everything."""
        with self._writing(_WRITER_BYTES) as writer:
            writer.delete_all_documents()
        self._index.reload()
        self.sequence, self.fresh = 0, True

    def terms(self, text: str) -> dict[str, float]:
        """The distinct terms of a text as the index holds them, each with its weight."""
        weights: dict[str, float] = {}
        with self._lock:
            for word, weight in word_weights(text).items():
                for term in self._analyzer.analyze(word):
                    weights[term] = max(weight, weights.get(term, 0.0))
        return weights

    def search(self, text: str, limit: int, only: Filter = ANYTHING, *, syntax: bool = False) -> list[KeywordHit]:
        """The best entities for the words of a text, best first.

        ``syntax`` takes the text for tantivy's query language, and raises InvalidInput when it is none.
        """
        query = self._parsed(text) if syntax else self._any_of(self.terms(text))
        if query is None:
            return []
        searcher = self._index.searcher()
        try:
            found = searcher.search(self._narrowed(query, only), limit, count=False)
        except ValueError as error:
            if not syntax:
                raise
            raise InvalidInput(f"query: cannot be answered: {error}") from None
        return [KeywordHit(str(searcher.doc(address)["id"][0]), float(score)) for score, address in found.hits]

    @contextlib.contextmanager
    def _writing(self, memory: int) -> Generator[tantivy.IndexWriter]:
        """A writer, committed at the end. After an error nothing is changed, and the next writer finds no lock."""
        manifest.unseal(self._folder)
        writer = self._index.writer(memory, 1)
        try:
            yield writer
            writer.commit()
        except BaseException:
            writer.rollback()
            raise
        finally:
            # Merges change the files behind the manifest's back unless they are waited for; the lock goes with it.
            writer.wait_merging_threads()

    def _any_of(self, terms: dict[str, float]) -> tantivy.Query | None:
        if not terms:
            return None
        fields = ("content", "name")
        parts = [self._term(field, term, weight) for term, weight in terms.items() for field in fields]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])

    def _term(self, field: str, term: str, weight: float) -> tantivy.Query:
        query = tantivy.Query.term_query(self._schema, field, term)
        return query if weight == 1.0 else tantivy.Query.boost_query(query, weight)

    def _parsed(self, text: str) -> tantivy.Query:
        try:
            return self._index.parse_query(text, ["content", "name"])
        except ValueError as error:
            raise InvalidInput(f"query: is not in the query language: {error}") from None

    def _narrowed(self, query: tantivy.Query, only: Filter) -> tantivy.Query:
        if only.is_empty:
            return query
        parts = [(tantivy.Occur.Must, query)]
        if only.types is not None:
            types = tantivy.Query.term_set_query(self._schema, "type", sorted(only.types))
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(types, 0.0)))
        if only.id_prefix:
            # Written as text, for the binding offers no range of texts; a regular expression has 1,000 states at most.
            prefix = self._index.parse_query(f"key:[{_key(only.id_prefix)} TO {_after(only.id_prefix)}}}", ["key"])
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(prefix, 0.0)))
        return tantivy.Query.boolean_query(parts)


def _document(entity: Text) -> tantivy.Document:
    document = tantivy.Document()
    document.add_text("id", entity.id)
    document.add_text("key", _key(entity.id))
    document.add_text("name", entity.id)
    document.add_text("type", entity.type)
    document.add_text("content", entity.content)
    return document


def _key(node_id: str) -> str:
    """An id in letters that mean nothing to the query language, in the same order as the ids."""
    return "x" + node_id.encode().hex()


def _after(prefix: str) -> str:
    """The first key behind all that start with a prefix that is not empty."""
    encoded = prefix.encode()
    return "x" + encoded[:-1].hex() + f"{encoded[-1] + 1:02x}"


def _analyzer() -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (
        tantivy.Filter.remove_long(_LONGEST_TOKEN),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    ):
        builder = builder.filter(step)
    return builder.build()


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("type", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("name", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("content", tokenizer_name=_ANALYZER, index_option="position")
    return builder.build()
