"""The keyword index of one store: tantivy, BM25 over content, id, name, summary and tags, English stemming.

Every `write` leaves the folder sealed with the checksums of its files; a folder that is not as it was sealed (killed in
between, damaged, from another version) is emptied when it is opened, and filled again by whoever owns the cursor.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import structlog
import tantivy

from kgserve.errors import InvalidInput
from kgserve.platform.codecs import decode_json
from kgserve.platform.gil import cooperative
from kgserve.platform.sqlite_files import remove_path
from kgserve.platform.text.words import content_words, with_forms, word_weights
from kgserve.projections import manifest
from kgserve.projections.text import NO_TEXT_FILTER, Filter, Text, past_key

log = structlog.get_logger()

KEYWORD_INDEX_KIND = "keyword 4"
_ANALYZER = "text"
# Tags are words of the summary, as are type, source and context of memories: each field costs every entity a byte, and
# each search a look-up for each word.
_TEXT_FIELDS = ("content", "name", "summary")
_MAX_TOKEN_BYTES = 100
_MAX_ANALYZED_CHARS = 4_000
# Of BM25, as tantivy has them.
_K1, _B = 1.2, 0.75
_TIME_FIELDS = ("since", "until", "valid_from", "valid_to", "freshness_at", "created")
_WRITER_BYTES = 15_000_000
_BULK_BYTES = 120_000_000
# If at least this part of all texts is likely to pass a filter, some more than are wanted are found and then filtered.
_MIN_OVERFETCH_SHARE = 0.2
_KEYWORD_OVERFETCH = 1.3
_MAX_QUERY_TERMS = 200
_MAX_STALE_HITS = 1_000


class KeywordHit(msgspec.Struct, frozen=True):
    """An entity that holds words of the query, with its BM25 score."""

    id: str
    score: float


class Frequencies(msgspec.Struct, frozen=True):
    """How many texts an index has, and how many of them hold a term in a field."""

    documents: int
    holding: Mapping[tuple[str, str], int]

    def boosts(self, other: Frequencies) -> dict[tuple[str, str], float]:
        """By how much each term is worth more among the texts of both indexes than in this one alone."""
        together = self.documents + other.documents
        return {
            key: _rarity(together, count + other.holding.get(key, 0)) / _rarity(self.documents, count)
            for key, count in self.holding.items()
            if count
        }


class _Segment(msgspec.Struct):
    max_doc: int


class _Meta(msgspec.Struct):
    segments: list[_Segment]


Reading = Literal["plain", "forms", "content", "syntax"]
"""How a query is read: as words; as words and their other forms; as these without function words; or in tantivy's
query language."""

_Part = tuple[tantivy.Occur, tantivy.Query]
_Scored = tuple[float, tantivy.DocAddress]


class KeywordIndex:
    """Searches may run in any thread beside one writer."""

    def __init__(self, folder: Path, id_of: Callable[[str], str] = str, made_of: str = "") -> None:
        """Open a folder as it was sealed, or an empty index in its place; ``sequence`` is then 0.

        ``id_of`` makes the id of an entity out of the key that it has here; ``made_of`` says which of its attributes
        its text was made of: what was sealed with another is not opened.
        """
        self._folder = folder
        self._made_of = made_of
        self._id_of = id_of
        self._analyzer = _analyzer()
        self._lock = threading.Lock()
        found = manifest.read(folder, KEYWORD_INDEX_KIND, made_of) if folder.is_dir() else None
        self.sequence = found.sequence if found else 0
        self.fresh = found is None
        self._checksums = manifest.Checksums()
        self._schema = _schema()
        self._documents = 0
        try:
            self._index = self._made(reuse=found is not None)
        except (OSError, ValueError):
            # One of the files that are tantivy's own and not sealed, such as the list of those that it may delete.
            log.exception("keyword_index_unusable", folder=folder.name)
            self.sequence, self.fresh = 0, True
            self._index = self._made(reuse=False)
        self._reload()

    def _made(self, *, reuse: bool) -> tantivy.Index:
        """The folder's index, or an empty one. Raises what tantivy does."""
        if reuse:
            _require_own_files(self._folder)
        else:
            remove_path(self._folder)
            self._folder.mkdir(parents=True)
        index = tantivy.Index(self._schema, path=str(self._folder), reuse=reuse)
        index.register_tokenizer(_ANALYZER, self._analyzer)
        return index

    def __len__(self) -> int:
        return self._index.searcher().num_docs

    @property
    def is_mostly_removed(self) -> bool:
        """Whether more of the texts that its files hold were removed than are left."""
        return self._documents > 2 * len(self)

    def write(
        self,
        put: Iterable[Text],
        removed: Iterable[str],
        sequence: int,
        *,
        bulk: bool = False,
        ended: int | None = None,
    ) -> None:
        """Replace and remove entities by their keys, and note the commit that this brings the index to.

        Entities are taken one by one; ``bulk`` lets it use more memory for many of them. Past texts that had ``ended``
        by a commit are removed, too.
        """
        with self._writing(_BULK_BYTES if bulk else _WRITER_BYTES) as writer:
            if ended is not None:
                writer.delete_documents_by_query(self._range("until", 0, ended))
            for node_id in removed:
                writer.delete_documents_by_term("id", node_id)
            for entity in cooperative(put):
                writer.delete_documents_by_term("id", entity.key)
                writer.add_document(_document(entity))
        self.seal(sequence)
        self._reload()

    def holds(self, ids: Iterable[str]) -> bool:
        """Whether its files have anything of some entities, be it of texts that were removed."""
        searcher = self._index.searcher()
        return any(searcher.doc_freq("key", _key_of(each)) for each in ids)

    def seal(self, sequence: int) -> None:
        """Note the commit that the index has been brought to."""
        manifest.seal(self._folder, KEYWORD_INDEX_KIND, sequence, self._made_of, self._checksums)
        self.sequence, self.fresh = sequence, False

    def clear(self, made_of: str = "") -> None:
        """Forget everything; what comes is ``made_of`` other attributes, perhaps."""
        self._made_of = made_of
        with self._writing(_WRITER_BYTES) as writer:
            writer.delete_all_documents()
        self._reload()
        self.sequence, self.fresh = 0, True

    def terms(self, text: str, reading: Reading = "plain") -> dict[str, float]:
        """The distinct terms of a text as the index holds them, each with its weight."""
        words = dict.fromkeys(content_words(text), 1.0) if reading == "content" else word_weights(text)
        if reading in {"forms", "content"}:
            words = with_forms(words)
        weights: dict[str, float] = {}
        with self._lock:
            for word, weight in words.items():
                for term in self._analyzer.analyze(word):
                    weights[term] = max(weight, weights.get(term, 0.0))
        return weights

    def lengthened(self, text: Text) -> Text:
        """A past text that goes on where an equal one of the same entity ends: both as one, in that one's place."""
        same = tantivy.Query.term_query(self._schema, "key", _key_of(text.id))
        parts = [(tantivy.Occur.Must, same), (tantivy.Occur.Must, self._range("until", text.since, text.since))]
        searcher = self._index.searcher()
        for _, address in searcher.search(tantivy.Query.boolean_query(parts), 1, count=False).hits:
            before = past_key(str(searcher.doc(address)["id"][0]))
            if before.digest == text.digest.hex():
                return msgspec.structs.replace(text, since=before.since)
        return text

    def frequencies(self, terms: Iterable[str]) -> Frequencies:
        """In how many texts each term is, by field, as BM25 counts them."""
        searcher = self._index.searcher()
        found = {(field, term): searcher.doc_freq(field, term) for term in terms for field in _TEXT_FIELDS}
        return Frequencies(self._documents, found)

    def worths(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """What each of some contents has of BM25 for each term of a query that it holds; only their beginnings count.

        Their lengths are compared with each other: they are taken for texts of the usual length.
        """
        wanted = self.terms(query, "forms")
        with self._lock:
            read = {key: self._analyzer.analyze(text[:_MAX_ANALYZED_CHARS]) for key, text in texts.items()}
        usual = sum(map(len, read.values())) / max(len(read), 1)
        rare = self.frequencies(wanted)
        most = {
            term: weight * (1.0 + _K1) * _rarity(rare.documents, rare.holding["content", term])
            for term, weight in wanted.items()
        }
        return {
            key: {
                term: most[term] * count / (count + _K1 * (1.0 - _B + _B * len(words) / usual))
                for term, count in Counter(word for word in words if word in most).items()
            }
            for key, words in read.items()
        }

    def search(
        self,
        text: str,
        limit: int,
        only: Filter = NO_TEXT_FILTER,
        *,
        reading: Reading = "plain",
        other: Frequencies | None = None,
    ) -> list[KeywordHit]:
        """The best entities for the words of a text, best first.

        With ``forms`` words are also found by what else they may be, such as go by went. ``syntax`` takes the text for
        tantivy's query language, and raises InvalidInput when it is none. Words are as rare as they are in this index,
        or in this one and the ``other`` together.
        """
        syntax = reading == "syntax"
        query = self._parsed(text) if syntax else self._any_of(self.terms(text, reading), other)
        if query is None:
            return []
        searcher = self._index.searcher()
        try:
            found = self._best(searcher, query, limit, only)
        except ValueError as error:
            if not syntax:
                raise
            raise InvalidInput(f"query: cannot be answered: {error}") from None
        return [KeywordHit(self._id_of(searcher.doc(address)["id"][0]), float(score)) for score, address in found]

    def _best(self, searcher: tantivy.Searcher, query: tantivy.Query, limit: int, only: Filter) -> list[_Scored]:
        """The best that pass. Where most do, tantivy is asked for some more of all, and then which of those pass.

        It finds the best of all without a look at most texts, and with any filter beside the words it looks at each.
        """
        if only.valid_at is not None and only == Filter(valid_at=only.valid_at):
            kept = self._true(searcher, query, limit, only)
            if kept is not None:
                return kept
        share = self._share(searcher, only)
        if not only.is_empty and share >= _MIN_OVERFETCH_SHARE:
            wanted = int(_KEYWORD_OVERFETCH * limit / share) + 1
            best = _scored(searcher.search(query, wanted, count=False))
            ids = [str(searcher.doc(address)["id"][0]) for _, address in best]
            these = tantivy.Query.const_score_query(self._one_of("id", ids), 1.0)
            passing = _scored(searcher.search(self._narrowed(these, only), wanted, count=False))
            places = {(address.segment_ord, address.doc) for _, address in passing}
            kept = [hit for hit in best if (hit[1].segment_ord, hit[1].doc) in places]
            if len(kept) >= limit or len(best) < wanted:
                return kept[:limit]
        return _scored(searcher.search(self._narrowed(query, only), limit, count=False))

    def _true(self, searcher: tantivy.Searcher, query: tantivy.Query, limit: int, only: Filter) -> list[_Scored] | None:
        """The best that are true, where few are not: so these are found first, and left out. None where many are."""
        [(_, began), (_, ended)] = self._in_time(only)
        late = tantivy.Query.boolean_query([(tantivy.Occur.Should, began), (tantivy.Occur.Should, ended)])
        untrue = _scored(searcher.search(late, _MAX_STALE_HITS, count=False))
        if len(untrue) == _MAX_STALE_HITS:
            return None
        places = {(address.segment_ord, address.doc) for _, address in untrue}
        for spare in (min(len(untrue), limit // 10 + 1), len(untrue)):
            best = _scored(searcher.search(query, limit + spare, count=False))
            kept = [hit for hit in best if (hit[1].segment_ord, hit[1].doc) not in places]
            if len(kept) >= limit or len(best) < limit + spare:
                break
        return kept[:limit]

    def _share(self, searcher: tantivy.Searcher, only: Filter) -> float:
        """Which part of all texts is likely to pass, as far as that can be told at once."""
        if only.as_of is not None or only.id_prefix or only.ids is not None:
            return 0.0
        count = max(self._documents, 1)
        types = 1.0 if only.types is None else sum(searcher.doc_freq("type", each) for each in only.types) / count
        return types * math.prod(
            sum(searcher.doc_freq("key", key) for key in keys) / count for keys in _keys_wanted(only)
        )

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

    def _reload(self) -> None:
        self._index.reload()
        self._documents = _documents(self._folder)

    def _any_of(self, terms: dict[str, float], other: Frequencies | None) -> tantivy.Query | None:
        if not terms:
            return None
        factors = self.frequencies(terms).boosts(other) if other else {}
        parts = [
            self._term(field, term, weight * factors.get((field, term), 1.0))
            for term, weight in terms.items()
            for field in _TEXT_FIELDS
        ]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])

    def _term(self, field: str, term: str, weight: float) -> tantivy.Query:
        query = tantivy.Query.term_query(self._schema, field, term)
        return query if weight == 1.0 else tantivy.Query.boost_query(query, weight)

    def _parsed(self, text: str) -> tantivy.Query:
        try:
            return self._index.parse_query(text, list(_TEXT_FIELDS))
        except ValueError as error:
            raise InvalidInput(f"query: is not in the query language: {error}") from None

    def _narrowed(self, query: tantivy.Query, only: Filter) -> tantivy.Query:
        if only.is_empty:
            return query
        parts = [(tantivy.Occur.Must, query), *self._in_time(only), *self._marked(only)]
        if only.types is not None:
            types = self._one_of("type", sorted(only.types))
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(types, 0.0)))
        if only.ids is not None:
            these = self._one_of("key", sorted(map(_key_of, only.ids)))
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(these, 0.0)))
        if only.id_prefix:
            # Written as text, for the binding offers no range of texts; a regular expression has 1,000 states at most.
            prefix = self._index.parse_query(f"key:[{_key_of(only.id_prefix)} TO {_after(only.id_prefix)}}}", ["key"])
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(prefix, 0.0)))
        return tantivy.Query.boolean_query(parts)

    def _one_of(self, field: str, terms: Sequence[str]) -> tantivy.Query:
        """Texts with one of some terms. A set of terms goes through its field's whole dictionary first, 0.4 ms."""
        if len(terms) > _MAX_QUERY_TERMS:
            return tantivy.Query.term_set_query(self._schema, field, terms)
        each = (tantivy.Query.term_query(self._schema, field, term) for term in terms)
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in each])

    def _marked(self, only: Filter) -> list[_Part]:
        wanted = [self._one_of("key", keys) for keys in _keys_wanted(only)]
        if only.created is not None:
            wanted.append(self._range("created", only.created[0], only.created[1] - 1))
        return [(tantivy.Occur.Must, tantivy.Query.const_score_query(query, 0.0)) for query in wanted]

    def _in_time(self, only: Filter) -> list[_Part]:
        """What began too late or was over by then is left out; what has no such time has no such field, and stays."""
        late: list[tantivy.Query] = []
        if only.as_of is not None:
            late += [self._range("since", only.as_of + 1, None), self._range("until", None, only.as_of)]
        if only.valid_at is not None:
            late += [self._range("valid_from", only.valid_at + 1, None), self._range("valid_to", None, only.valid_at)]
        if only.fresh_at is not None:
            late.append(self._range("freshness_at", None, only.fresh_at))
        return [(tantivy.Occur.MustNot, query) for query in late]

    def _range(self, field: str, least: int | None, most: int | None) -> tantivy.Query:
        return tantivy.Query.range_query(self._schema, field, tantivy.FieldType.Integer, least, most)


def _require_own_files(folder: Path) -> None:
    """Raise ValueError where the list of tantivy's own files is damaged: it names at least those that are there."""
    listed = decode_json((folder / ".managed.json").read_bytes(), list[str])
    there = {path.name for path in folder.iterdir() if path.suffix in {".idx", ".term", ".store", ".pos", ".fast"}}
    if missing := there.difference(listed):
        raise ValueError(f".managed.json does not name {min(missing)}")


def _scored(found: tantivy.SearchResult) -> list[_Scored]:
    return list(found.hits)


def _documents(folder: Path) -> int:
    """Texts as BM25 counts them: those that were removed count until their segment is merged."""
    meta = decode_json((folder / "meta.json").read_bytes(), _Meta)
    return sum(segment.max_doc for segment in meta.segments)


def _rarity(documents: int, holding: int) -> float:
    """What BM25 multiplies a word with, that is in some of the texts."""
    return math.log1p((documents - holding + 0.5) / (holding + 0.5))


# Texts as documents of tantivy


def _document(entity: Text) -> tantivy.Document:
    """A text as tantivy takes it."""
    made = tantivy.Document()
    made.add_text("id", entity.key)
    made.add_text("key", _key_of(entity.id))
    made.add_text("name", entity.id)
    if entity.name:
        made.add_text("name", entity.name)
    made.add_text("type", entity.type)
    made.add_text("content", entity.content)
    for words in filter(None, entity.words):
        made.add_text("summary", words)
    for key in _keys(entity):
        made.add_text("key", key)
    for field, value in _times(entity):
        if value is not None:
            made.add_integer(field, value)
    return made


def _times(entity: Text) -> Iterator[tuple[str, int | None]]:
    yield "since", entity.since
    yield "until", entity.until
    if entity.facets is not None:
        yield "valid_from", entity.facets.valid_from
        yield "valid_to", entity.facets.valid_to
        yield "freshness_at", entity.facets.freshness_at
        if entity.facets.marks is not None:
            yield "created", entity.facets.marks.created


def _keys(entity: Text) -> Iterator[str]:
    """What filters find it by, beside its id."""
    yield from map(_key_of_tag, entity.tags)
    if entity.facets is not None and (marks := entity.facets.marks) is not None:
        yield _MEMORY_TERM
        if marks.layer is not None:
            yield _key_of_layer(marks.layer)
        yield _key_of_source(marks.source)


def _keys_wanted(only: Filter) -> Iterator[list[str]]:
    """Of each of these lists, an entity that passes has a key."""
    yield from ([_key_of_tag(tag)] for tag in sorted(only.tags))
    if only.wants_memories:
        yield [_MEMORY_TERM]
    if only.layers is not None:
        yield [_key_of_layer(layer) for layer in sorted(only.layers)]
    if only.sources is not None:
        yield [_key_of_source(source) for source in sorted(only.sources)]


def _key_of(node_id: str) -> str:
    """An id in letters that mean nothing to the query language, in the same order as the ids."""
    return "x" + node_id.encode().hex()


def _key_of_tag(tag: str) -> str:
    """A tag among the keys, where no id can be taken for it."""
    return "t" + tag.encode().hex()


_MEMORY_TERM = "m"
"""The key of all memories."""


def _key_of_layer(layer: int) -> str:
    return f"l{layer}"


def _key_of_source(source: str) -> str:
    return "s" + source.encode().hex()


def _after(prefix: str) -> str:
    """The first key behind all that start with a prefix that is not empty."""
    encoded = prefix.encode()
    return "x" + encoded[:-1].hex() + f"{encoded[-1] + 1:02x}"


def _analyzer() -> tantivy.TextAnalyzer:
    """How texts and queries become terms."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (
        tantivy.Filter.remove_long(_MAX_TOKEN_BYTES),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    ):
        builder = builder.filter(step)
    return builder.build()


def _schema() -> tantivy.Schema:
    """The fields of a document. Times are there only where something has them."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("type", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("name", tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_text_field("content", tokenizer_name=_ANALYZER, index_option="position")
    builder.add_text_field("summary", tokenizer_name=_ANALYZER, index_option="position")
    for name in _TIME_FIELDS:
        builder.add_integer_field(name, fast=True)
    return builder.build()
