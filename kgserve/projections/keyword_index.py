"""Keyword index of one store: tantivy with BM25 over content, id, name, summary and tags, and English stemming.

Every `write` seals the folder with the checksums of its files. A folder that differs from its seal (killed in between,
damaged, from another version) is emptied when it is opened. The caller that tracks its commits then fills it again.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import structlog
import tantivy
import xxhash

from kgserve.errors import InvalidInput
from kgserve.platform.codecs import decode_json
from kgserve.platform.gil_yield import iterate_yielding_gil
from kgserve.platform.sqlite_files import remove_path
from kgserve.platform.text.analyzer import (
    ANALYZER_VERSION,
    detect_language_and_unstemmed_terms,
    extract_index_terms,
    join_unstemmed_index_terms,
)
from kgserve.platform.text.language_detection import detect_language
from kgserve.platform.text.languages import LanguageSetting
from kgserve.platform.text.query_analyzer import (
    QueryTerm,
    list_prefix_terms_of_last_query_word,
    stem_search_query_words,
)
from kgserve.platform.text.stemmer import select_query_stemming_languages
from kgserve.platform.text.tantivy_query_rewrites import replace_tantivy_query_words_by_terms
from kgserve.projections import folder_manifest
from kgserve.projections.indexed_text import (
    NO_TEXT_FILTER,
    EntitySearchFilter,
    IndexedEntityText,
    parse_past_text_index_key,
)
from kgserve.projections.keyword_query import (
    TEXT_FIELDS,
    KeywordQuery,
    KeywordQueryBuilder,
    compute_bm25_idf,
)

log = structlog.get_logger()

KEYWORD_INDEX_KIND = "keyword 6"
_TOKENIZER = "prepared"
_MAX_ANALYZED_CHARS = 4_000
_MAX_CACHED_TEXTS = 4_096
_MAX_CACHED_CHARS = 500
# BM25 parameters, equal to tantivy's.
_K1, _B = 1.2, 0.75
_TIME_FIELDS = ("since", "until", "valid_from", "valid_to", "freshness_at", "created")
_WRITER_BYTES = 15_000_000
_BULK_BYTES = 120_000_000
# If at least this share of texts is likely to pass a filter, more hits than requested are fetched and then filtered.
_MIN_OVERFETCH_SHARE = 0.2
_KEYWORD_OVERFETCH = 1.3
_MAX_TYPES = 1_000
_MAX_QUERY_TERMS = 200
_MAX_STALE_HITS = 1_000
_MISSPELT_SHARE = 0.5
_MAX_NEW_KEYS = 1 << 19


class KeywordHit(msgspec.Struct, frozen=True):
    """Entity that matches words of the query, with its BM25 score."""

    id: str
    score: float


class DocumentFrequencies(msgspec.Struct, frozen=True):
    """Document count of an index, and document frequencies by field and term."""

    documents: int
    holding: Mapping[tuple[str, str], int]

    def boosts(self, other: DocumentFrequencies) -> dict[tuple[str, str], float]:
        """Return by which factor each term weighs more in both indexes together than in this one."""
        together = self.documents + other.documents
        return {
            key: compute_bm25_idf(together, count + other.holding.get(key, 0)) / compute_bm25_idf(self.documents, count)
            for key, count in self.holding.items()
            if count
        }


class _Segment(msgspec.Struct):
    max_doc: int


class _Meta(msgspec.Struct):
    segments: list[_Segment]


_Part = tuple[tantivy.Occur, tantivy.Query]
_Scored = tuple[float, tantivy.DocAddress]


class KeywordIndex:
    """Keyword index in a folder. Searches may run in any thread concurrently with one writer."""

    def __init__(
        self,
        folder: Path,
        id_of: Callable[[str], str] = str,
        made_of: str = "",
        language: LanguageSetting = "auto",
    ) -> None:
        """Open a folder if it matches its seal, or else create an empty index; ``sequence`` is then 0.

        ``id_of`` converts a key of this index to an entity id. ``made_of`` identifies the attributes that the texts
        include. An index sealed with another value, language or analyser version is discarded.
        """
        self._folder = folder
        self._language: LanguageSetting = language
        self._made_of = _describe(made_of, language)
        self._id_of = id_of
        found = (
            folder_manifest.verify_index_folder_manifest(folder, self._made_of, KEYWORD_INDEX_KIND)
            if folder.is_dir()
            else None
        )
        self.sequence = found.sequence if found else 0
        self.fresh = found is None
        self._checksums = folder_manifest.FileChecksumCache()
        self._schema = _schema()
        self._document_count = 0
        # Types of the texts, up to `_MAX_TYPES`; None until they are needed.
        self._types: list[str] | None = None
        try:
            self._index = self._open_index(reuse=found is not None)
        except (OSError, ValueError):
            # A file that is managed by tantivy and not sealed is damaged, such as the list of files that it may delete.
            log.exception("keyword_index_unusable", folder=folder.name)
            self.sequence, self.fresh = 0, True
            self._index = self._open_index(reuse=False)
        self._reload()

    def _open_index(self, *, reuse: bool) -> tantivy.Index:
        """Return the index in the folder, or an empty one. Raises what tantivy raises."""
        if reuse:
            _require_own_files(self._folder)
        else:
            remove_path(self._folder)
            self._folder.mkdir(parents=True)
        index = tantivy.Index(self._schema, path=str(self._folder), reuse=reuse)
        index.register_tokenizer(_TOKENIZER, _tokenizer())
        return index

    def __len__(self) -> int:
        return self._index.searcher().num_docs

    @property
    def is_mostly_removed(self) -> bool:
        """True if the files hold more deleted texts than live ones."""
        return self._document_count > 2 * len(self)

    def write(
        self,
        put: Iterable[IndexedEntityText],
        removed: Iterable[str],
        sequence: int,
        *,
        bulk: bool = False,
        ended: int | None = None,
    ) -> None:
        """Replace and remove entities by key, and record the commit that the index then contains.

        ``put`` is consumed lazily; ``bulk`` allows more memory for many entities. Past texts that had ``ended`` by a
        commit are removed as well.
        """
        with self._writing(_BULK_BYTES if bulk else _WRITER_BYTES) as writer:
            if ended is not None:
                writer.delete_documents_by_query(self._range("until", 0, ended))
            for node_id in removed:
                writer.delete_documents_by_term("id", node_id)
            # An empty index is filled without deletions, which cost a third of the time.
            new: set[str] | None = None if len(self) else set()
            for entity in iterate_yielding_gil(put):
                if new is None or entity.key in new:
                    writer.delete_documents_by_term("id", entity.key)
                else:
                    new.add(entity.key)
                    new = new if len(new) < _MAX_NEW_KEYS else None
                writer.add_document(_document(entity, self._language))
        # First, so that a retry after a failed seal replaces these texts.
        self._reload()
        self.seal(sequence)

    def holds(self, ids: Iterable[str]) -> bool:
        """Return whether the files contain anything of some entities, including deleted texts."""
        searcher = self._index.searcher()
        return any(searcher.doc_freq("key", _key_of(each)) for each in ids)

    def seal(self, sequence: int) -> None:
        """Record the commit that the index contains."""
        folder_manifest.write_index_folder_manifest(
            self._folder, KEYWORD_INDEX_KIND, sequence, self._made_of, self._checksums
        )
        self.sequence, self.fresh = sequence, False

    def languages(self) -> dict[str, int]:
        """Return the number of texts in each detected language, most frequent first."""
        if self._language != "auto":
            return {self._language: self._document_count} if self._document_count else {}
        keys = self._index.searcher().terms_with_prefix("key", _LANGUAGE_PREFIX)
        found = {key.removeprefix(_LANGUAGE_PREFIX): count for key, count in keys}
        # English texts have no key, since they are the most frequent ones; those without a language have an empty one.
        found["en"] = self._document_count - sum(found.values())
        found.pop("", None)
        return {code: found[code] for code in sorted(found, key=found.__getitem__, reverse=True) if found[code]}

    def terms(self, query: KeywordQuery) -> dict[str, float]:
        """Return the distinct terms of a query as indexed, each with its weight."""
        weights: dict[str, float] = {}
        for term in self._query_terms(query):
            for stem in (*term.stems, *term.phrase):
                weights[stem] = max(term.weight, weights.get(stem, 0.0))
        return weights

    def _query_terms(self, query: KeywordQuery) -> Sequence[QueryTerm]:
        """Return the words of a query, and their other forms if the reading asks for them."""
        return stem_search_query_words(
            query.text,
            self._stemming_languages,
            content_only=query.reading == "content",
            irregular=query.reading in {"forms", "content"},
        )

    def merge_with_predecessor(self, text: IndexedEntityText) -> IndexedEntityText:
        """Return a past text extended to begin where an equal preceding text of the entity begins.

        The result replaces that preceding text, or the text itself if it was merged before.
        """
        same = tantivy.Query.term_query(self._schema, "key", _key_of(text.id))
        searcher = self._index.searcher()
        for until in (text.until, text.since):
            parts = [(tantivy.Occur.Must, same), (tantivy.Occur.Must, self._range("until", until, until))]
            for _, address in searcher.search(tantivy.Query.boolean_query(parts), 1, count=False).hits:
                before = parse_past_text_index_key(str(searcher.doc(address)["id"][0]))
                if before.digest == text.digest.hex():
                    return msgspec.structs.replace(text, since=before.since)
        return text

    def frequencies(self, terms: Iterable[str]) -> DocumentFrequencies:
        """Return the document frequency of each term, by field, as BM25 counts it."""
        searcher = self._index.searcher()
        found = {(field, term): searcher.doc_freq(field, term) for term in terms for field in TEXT_FIELDS}
        return DocumentFrequencies(self._document_count, found)

    def bm25_scores(self, query: str, texts: Mapping[str, str]) -> dict[str, dict[str, float]]:
        """Return the BM25 score of each content for each query term in it; only the beginnings of contents count.

        Lengths are normalized by the average length of the given contents.
        """
        wanted = [term for term in self._query_terms(KeywordQuery(query, "forms")) if term.stems]
        language = self._common_language
        read = {key: _count_terms(text[:_MAX_ANALYZED_CHARS], language) for key, text in texts.items()}
        usual = sum(length for _, length in read.values()) / max(len(read), 1)
        terms_of: dict[str, list[QueryTerm]] = {}
        for term in wanted:
            for stem in term.stems:
                terms_of.setdefault(stem, []).append(term)
        rare = self.frequencies(terms_of)
        most = {
            stem: (1.0 + _K1) * compute_bm25_idf(rare.documents, rare.holding["content", stem]) for stem in terms_of
        }
        scores: dict[str, dict[str, float]] = {}
        for key, (counts, length) in read.items():
            found = scores[key] = {}
            damping = _K1 * (1.0 - _B + _B * length / usual)
            for stem in filter(counts.__contains__, most):
                score = most[stem] * counts[stem] / (counts[stem] + damping)
                for term in terms_of[stem]:
                    found[term.stems[0]] = max(found.get(term.stems[0], 0.0), term.weight * score)
        return scores

    def search(
        self,
        query: KeywordQuery,
        limit: int,
        only: EntitySearchFilter = NO_TEXT_FILTER,
        *,
        other: DocumentFrequencies | None = None,
    ) -> list[KeywordHit]:
        """Return the best entities for a query, best first.

        The rarity of words is that in this index, or in this one and ``other`` together. Raises InvalidInput for a
        query that cannot be parsed as tantivy's query language, if that is its reading.
        """
        searcher = self._index.searcher()
        if query.reading == "syntax":
            parsed = self._parse_syntax(query.text)
            try:
                found = self._best_hits(searcher, parsed, limit, only)
            except ValueError as error:
                raise InvalidInput(f"`query` cannot be evaluated: {error}") from None
        else:
            found = self._search_words(searcher, query, limit, only, other)
        return [KeywordHit(self._id_of(searcher.doc(address)["id"][0]), float(score)) for score, address in found]

    def _search_words(
        self,
        searcher: tantivy.Searcher,
        query: KeywordQuery,
        limit: int,
        only: EntitySearchFilter,
        other: DocumentFrequencies | None,
    ) -> list[_Scored]:
        """Return the best hits for the words of a query. If there are too few, those with misspelt words follow."""
        terms = self._query_terms(query)
        factors: dict[tuple[str, str], float] = {}
        if other is not None:
            factors = self.frequencies(stem for term in terms for stem in term.stems).boosts(other)
        builder = KeywordQueryBuilder(self._schema, searcher, self._document_count)
        any_term = builder.match_any(
            terms, factors, list_prefix_terms_of_last_query_word(query.text) if query.prefix else ()
        )
        found = [] if any_term is None else self._best_hits(searcher, any_term, limit, only)
        if query.reading == "plain" and len(found) < limit and (misspelt := builder.match_misspelt(terms)) is not None:
            taken = {(address.segment_ord, address.doc) for _, address in found}
            lowest = found[-1][0] if found else 1.0
            more = self._best_hits(searcher, misspelt, limit, only)
            found += [
                (lowest * _MISSPELT_SHARE * score / more[0][0], address)
                for score, address in more
                if (address.segment_ord, address.doc) not in taken
            ]
        return found[:limit]

    def _best_hits(
        self, searcher: tantivy.Searcher, query: tantivy.Query, limit: int, only: EntitySearchFilter
    ) -> list[_Scored]:
        """Return the best hits that pass a filter.

        If most texts are of the wanted types, fetch more hits than requested, then select those of these types: an
        unfiltered search skips most texts, a filtered one examines each match.
        """
        if only.valid_at is not None and only == EntitySearchFilter(valid_at=only.valid_at):
            kept = self._search_valid(searcher, query, limit, only)
            if kept is not None:
                return kept
        if only.types is not None and (codes := self._codes_of_types(searcher, only.types)):
            types = sum(searcher.doc_freq("type", each) for each in only.types)
            share = types / max(self._document_count, 1)
            wanted = int(_KEYWORD_OVERFETCH * limit / max(share, _MIN_OVERFETCH_SHARE)) + 1
            if share >= _MIN_OVERFETCH_SHARE:
                rest = self._filtered_query(query, msgspec.structs.replace(only, types=None))
                best = _scored_hits(searcher.search(rest, wanted, count=False))
                found = searcher.fast_field_values("type_code", [address for _, address in best])
                kept = [hit for hit, code in zip(best, found, strict=True) if code in codes]
                if len(kept) >= limit or len(best) < wanted:
                    return kept[:limit]
        return _scored_hits(searcher.search(self._filtered_query(query, only), limit, count=False))

    def _codes_of_types(self, searcher: tantivy.Searcher, wanted: frozenset[str]) -> set[int]:
        """Return the codes of some types; none if another type of the index has one of them, or there are many."""
        codes, types = {_type_code(each) for each in wanted}, self._types
        if types is None:
            types = self._types = [term for term, _ in searcher.terms_with_prefix("type", "", limit=_MAX_TYPES)]
        unique = len(types) < _MAX_TYPES and all(each in wanted for each in types if _type_code(each) in codes)
        return codes if unique else set()

    def _search_valid(
        self, searcher: tantivy.Searcher, query: tantivy.Query, limit: int, only: EntitySearchFilter
    ) -> list[_Scored] | None:
        """Return the best hits valid at a moment, by excluding the invalid ones; None if many texts are invalid."""
        [(_, began), (_, ended)] = self._time_clauses(only)
        late = tantivy.Query.boolean_query([(tantivy.Occur.Should, began), (tantivy.Occur.Should, ended)])
        invalid = _scored_hits(searcher.search(late, _MAX_STALE_HITS, count=False))
        if len(invalid) == _MAX_STALE_HITS:
            return None
        addresses = {(address.segment_ord, address.doc) for _, address in invalid}
        for overfetch in (min(len(invalid), limit // 10 + 1), len(invalid)):
            best = _scored_hits(searcher.search(query, limit + overfetch, count=False))
            kept = [hit for hit in best if (hit[1].segment_ord, hit[1].doc) not in addresses]
            if len(kept) >= limit or len(best) < limit + overfetch:
                break
        return kept[:limit]

    @contextlib.contextmanager
    def _writing(self, memory: int) -> Generator[tantivy.IndexWriter]:
        """Yield a writer, and commit at the end. An error changes nothing and leaves no lock behind."""
        folder_manifest.remove_folder_manifest(self._folder)
        writer = self._index.writer(memory, 1)
        try:
            yield writer
            writer.commit()
        except BaseException:
            writer.rollback()
            raise
        finally:
            # Wait for merges, which would change files after the seal; this also releases the lock.
            writer.wait_merging_threads()

    def _reload(self) -> None:
        self._index.reload()
        self._types = None
        self._document_count = _document_count(self._folder)
        found = self.languages()
        # Texts whose language cannot be detected are read as English.
        chosen = "en" if self._language == "auto" else self._language
        self._stemming_languages = select_query_stemming_languages(found, self._document_count, chosen)
        self._common_language = chosen if {*found} <= {chosen} else None

    def _parse_syntax(self, text: str) -> tantivy.Query:
        rewritten = replace_tantivy_query_words_by_terms(text, self._stemming_languages, TEXT_FIELDS)
        try:
            return self._index.parse_query(rewritten, list(TEXT_FIELDS))
        except ValueError as error:
            raise InvalidInput(f"`query` is not valid query syntax: {error}") from None

    def _filtered_query(self, query: tantivy.Query, only: EntitySearchFilter) -> tantivy.Query:
        if only.is_empty:
            return query
        parts = [(tantivy.Occur.Must, query), *self._time_clauses(only), *self._facet_clauses(only)]
        if only.types is not None:
            types = self._one_of_query("type", sorted(only.types))
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(types, 0.0)))
        if only.ids is not None:
            ids_query = self._one_of_query("key", sorted(map(_key_of, only.ids)))
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(ids_query, 0.0)))
        if only.id_prefix:
            # Parsed from text, since the binding has no range query for text, and a regular expression is limited to
            # 1,000 states.
            prefix = self._index.parse_query(
                f"key:[{_key_of(only.id_prefix)} TO {_key_after(only.id_prefix)}}}", ["key"]
            )
            parts.append((tantivy.Occur.Must, tantivy.Query.const_score_query(prefix, 0.0)))
        return tantivy.Query.boolean_query(parts)

    def _one_of_query(self, field: str, terms: Sequence[str]) -> tantivy.Query:
        """Return a query for texts with any of some terms. A term set scans the field's dictionary first, 0.4 ms."""
        if len(terms) > _MAX_QUERY_TERMS:
            return tantivy.Query.term_set_query(self._schema, field, terms)
        each = (tantivy.Query.term_query(self._schema, field, term) for term in terms)
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, query) for query in each])

    def _facet_clauses(self, only: EntitySearchFilter) -> list[_Part]:
        wanted = [self._one_of_query("key", keys) for keys in _keys_wanted(only)]
        if only.created is not None:
            wanted.append(self._range("created", only.created[0], only.created[1] - 1))
        return [(tantivy.Occur.Must, tantivy.Query.const_score_query(query, 0.0)) for query in wanted]

    def _time_clauses(self, only: EntitySearchFilter) -> list[_Part]:
        """Return clauses that exclude texts outside the requested times; texts without such a time pass."""
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


def _describe(made_of: str, language: LanguageSetting) -> str:
    """Return what an index is made of, for its manifest."""
    return f"{ANALYZER_VERSION} {language} {made_of}"


def _require_own_files(folder: Path) -> None:
    """Raise ValueError if tantivy's list of its files is damaged, so that it lacks existing index files."""
    listed = decode_json((folder / ".managed.json").read_bytes(), list[str])
    existing = {path.name for path in folder.iterdir() if path.suffix in {".idx", ".term", ".store", ".pos", ".fast"}}
    if missing := existing.difference(listed):
        raise ValueError(f".managed.json does not name {min(missing)}")


def _scored_hits(found: tantivy.SearchResult) -> list[_Scored]:
    return list(found.hits)


def _document_count(folder: Path) -> int:
    """Return the document count for BM25, which includes deleted texts until their segment is merged."""
    meta = decode_json((folder / "meta.json").read_bytes(), _Meta)
    return sum(segment.max_doc for segment in meta.segments)


def _count_terms(text: str, language: str | None) -> tuple[Mapping[str, int], int]:
    """Return the count of each term in a text, and of all terms; without a language, that is detected."""
    return _count_cached_terms(text, language) if len(text) <= _MAX_CACHED_CHARS else _count(text, language)


def _count(text: str, language: str | None) -> tuple[Mapping[str, int], int]:
    terms = extract_index_terms(text, detect_language(text) if language is None else language)
    return Counter(terms), len(terms)


# Searches of a conversation score the same turns again.
_count_cached_terms = lru_cache(maxsize=_MAX_CACHED_TEXTS)(_count)


# Conversion to tantivy documents


def _document(entity: IndexedEntityText, setting: LanguageSetting) -> tantivy.Document:
    """Return a text as a tantivy document, in the language of the setting."""
    document = tantivy.Document()
    document.add_text("id", entity.key)
    document.add_text("key", _key_of(entity.id))
    if setting == "auto":
        language, content = detect_language_and_unstemmed_terms(entity.content)
        if language != "en":
            document.add_text("key", _LANGUAGE_PREFIX + language)
    else:
        language, content = setting, join_unstemmed_index_terms(entity.content, setting)
    document.add_text(
        "name", join_unstemmed_index_terms(f"{entity.id} {entity.name}" if entity.name else entity.id, language)
    )
    document.add_text("type", entity.type)
    document.add_unsigned("type_code", _type_code(entity.type))
    document.add_text("content", content)
    if words := " ".join(filter(None, entity.words)):
        document.add_text("summary", join_unstemmed_index_terms(words, language))
    for key in _keys(entity):
        document.add_text("key", key)
    for field, value in _times(entity):
        if value is not None:
            document.add_integer(field, value)
    return document


@lru_cache(maxsize=1 << 10)
def _type_code(type_: str) -> int:
    """Return 16 bits that identify a type among the few types of an index; two types may have the same."""
    return xxhash.xxh3_64_intdigest(type_.encode("utf-8", "surrogatepass")) & 0xFFFF


def _times(entity: IndexedEntityText) -> Iterator[tuple[str, int | None]]:
    yield "since", entity.since
    yield "until", entity.until
    if entity.facets is not None:
        yield "valid_from", entity.facets.valid_from
        yield "valid_to", entity.facets.valid_to
        yield "freshness_at", entity.facets.freshness_at
        if entity.facets.marks is not None:
            yield "created", entity.facets.marks.created


def _keys(entity: IndexedEntityText) -> Iterator[str]:
    """Yield the keys for filters, in addition to the id."""
    yield from map(_key_of_tag, entity.tags)
    if entity.facets is not None and (marks := entity.facets.marks) is not None:
        yield _MEMORY_TERM
        if marks.layer is not None:
            yield _key_of_layer(marks.layer)
        yield _key_of_source(marks.source)


def _keys_wanted(only: EntitySearchFilter) -> Iterator[list[str]]:
    """Yield lists of keys; an entity passes if it has at least one key of each list."""
    yield from ([_key_of_tag(tag)] for tag in sorted(only.tags))
    if only.wants_memories:
        yield [_MEMORY_TERM]
    if only.layers is not None:
        yield [_key_of_layer(layer) for layer in sorted(only.layers)]
    if only.sources is not None:
        yield [_key_of_source(source) for source in sorted(only.sources)]


def _key_of(node_id: str) -> str:
    """Return an id encoded without query syntax, in the order of the ids."""
    return "x" + node_id.encode().hex()


def _key_of_tag(tag: str) -> str:
    """Return the key of a tag, which never equals that of an id."""
    return "t" + tag.encode().hex()


_LANGUAGE_PREFIX = "g"
"""Beginning of the keys of languages."""
_MEMORY_TERM = "m"
"""Key of all memories."""


def _key_of_layer(layer: int) -> str:
    return f"l{layer}"


def _key_of_source(source: str) -> str:
    return "s" + source.encode().hex()


def _key_after(prefix: str) -> str:
    """Return the first key after all keys with a non-empty prefix."""
    encoded = prefix.encode()
    return "x" + encoded[:-1].hex() + f"{encoded[-1] + 1:02x}"


def _tokenizer() -> tantivy.TextAnalyzer:
    """Return the analyzer for prepared texts, which takes the last step of `kgserve.platform.text.stemmer`."""
    return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).filter(tantivy.Filter.stemmer("english")).build()


def _schema() -> tantivy.Schema:
    """Return the fields of a document. Time fields are present only where set."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("type", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("type_code", fast=True)
    builder.add_text_field("name", tokenizer_name=_TOKENIZER, index_option="freq")
    builder.add_text_field("content", tokenizer_name=_TOKENIZER, index_option="position")
    builder.add_text_field("summary", tokenizer_name=_TOKENIZER, index_option="position")
    for name in _TIME_FIELDS:
        builder.add_integer_field(name, fast=True)
    return builder.build()
