"""Analysis of texts and queries into index terms. The index, queries and term scores use the same code.

A text is divided at blanks, and the terms of each piece are cached. `analyze` returns the stems of all words in order,
which phrases match, followed by further forms: compounds as a whole, words with their accents, single Han characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache

import msgspec
from py_rust_stemmers import SnowballStemmer

from kgserve.platform.text.folding import find_exact_form, fold_word, remove_points
from kgserve.platform.text.identifiers import MAX_TERM_CHARS, Compound, Emoji, Run, find_compounds
from kgserve.platform.text.languages import LANGUAGES, detect_language, list_stop_words, script_of
from kgserve.platform.text.query_words import (
    FUNCTION_WORD_WEIGHT,
    MAX_WEIGHTED_WORDS,
    find_contracted,
    is_function_word,
)
from kgserve.platform.text.segmentation import get_plain_emoji, list_bigrams, list_singles, normalize_characters

ANALYZER_VERSION = "1"
"""Version of the analysis. Indexes of another version are filled again."""
MAX_CACHED_CHUNKS = 1 << 16
MAX_CACHED_CHUNK_CHARS = 32
WHOLE_WEIGHT = 0.5
"""Factor of a compound written together, next to its parts."""
EXACT_WEIGHT = 0.5
PHRASE_WEIGHT = 0.5
MAX_PHRASE_TERMS = 12

_STEMMER_NAMES: dict[str, str] = {
    "ar": "arabic", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hu": "hungarian", "it": "italian", "nl": "dutch", "no": "norwegian", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
_OTHER_SCRIPTS: frozenset[str] = frozenset({"ar", "el", "ru", "ta"})
_LATIN_LANGUAGES = frozenset(LANGUAGES) - _OTHER_SCRIPTS
# Languages that share a script with a stemmed language but are not stemmed.
_UNSTEMMED = frozenset({"uk", "fa", "ur"})
_PLAIN_CHUNK = re.compile(r"[(\"'\[{]*([A-Z]?[a-z]+|[A-Z]+)[)\"'\]}.,;:!?]*")
_EXTRA = "\x01"
_EXTRA_TERM = re.compile(r"\x01(\S+) ?")
_DIGRAPH = re.compile("[aou]e")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_DIGRAPHS = {"ae": "ä", "oe": "ö", "ue": "ü"}


class QueryTerm(msgspec.Struct, frozen=True):
    """Word of a query: the terms that it may have in the index, and the factor of its score.

    ``word`` is the word in lower case, "" for forms of a compound that are not words by themselves. A term with a
    ``phrase`` matches these terms in a row instead of ``stems``.
    """

    stems: tuple[str, ...]
    weight: float = 1.0
    word: str = ""
    phrase: tuple[str, ...] = ()


def analyze(text: str, language: str, *, further: bool = True) -> list[str]:
    """Return the index terms of a text in a language, as ISO 639-1 code; "" stems words by their script alone.

    Without ``further`` forms, they are those that phrases match.
    """
    if further:
        return join_terms(text, language).split()
    return _EXTRA_TERM.sub("", " ".join(map(_chunk_cache(get_stemming(language)).__getitem__, text.split()))).split()


def join_terms(text: str, language: str) -> str:
    """Return the terms of `analyze` separated by blanks."""
    joined = " ".join(map(_chunk_cache(get_stemming(language)).__getitem__, text.split()))
    if _EXTRA not in joined:
        return joined
    return f"{_EXTRA_TERM.sub('', joined)} {' '.join(_EXTRA_TERM.findall(joined))}"


def get_stemming(language: str) -> str:
    """Return the language itself if its words are stemmed in a way of their own, else ""."""
    return language if language in _STEMMER_NAMES or language in _UNSTEMMED else ""


def list_prefixes(query: str) -> list[str]:
    """Return the beginnings that words may have to match the end of a query: its last word, and compound."""
    chunk = normalize_characters(query).split()[-1:]
    found = [*find_compounds(chunk[0])] if chunk else []
    match found[-1:]:
        case [Compound() as last]:
            return [*dict.fromkeys(fold_word(form) for form in (last.parts[-1], *last.wholes[:1]))]
        case [Run() as run]:
            return list_bigrams(run.text)[-1:] if len(found) == 1 and len(run.text) == 1 else []
        case _:
            return []


def analyze_query(query: str, languages: Sequence[str], *, content_only: bool = False) -> list[QueryTerm]:
    """Return the words of a query, stemmed in each of the languages, most important language first.

    Function words have a tenth of the weight, unless there are no others; ``content_only`` omits them. The forms of
    compounds follow: compounds as a whole, phrases of their parts, and words with their accents.
    """
    words: dict[tuple[str, ...], QueryTerm] = {}
    others: dict[QueryTerm, None] = {}
    for term in _query_terms(query, tuple(languages)):
        if not term.word:
            others[term] = None
        elif content_only and term.weight < 1.0:
            continue
        elif (known := words.get(term.stems)) is None or known.weight < term.weight:
            words[term.stems] = term
        if len(words) == MAX_WEIGHTED_WORDS:
            break
    if words and all(term.weight < 1.0 for term in words.values()):
        words = {key: msgspec.structs.replace(term, weight=1.0) for key, term in words.items()}
    return [*words.values(), *others]


def stem_alternatives(word: str, languages: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct terms that a word of a query may have in texts of some languages."""
    folded = fold_word(word)
    stems = dict.fromkeys(stem_word(form, each) for each in languages for form in dict.fromkeys((word, folded)))
    if not word.isascii():
        spelled = word.lower().translate(_UMLAUTS)
        if spelled != word.lower():
            stems.update(dict.fromkeys(stem_word(spelled, each) for each in languages))
    elif _DIGRAPH.search(folded):
        stems[_DIGRAPH.sub(lambda found: _DIGRAPHS[found[0]], folded)] = None
    return tuple(stems) or (folded,)


@lru_cache(maxsize=1 << 14)
def stem_word(word: str, language: str) -> str:
    """Return the index term of a word in NFKC, as in a text of a language."""
    folded = fold_word(word)
    if not folded.isalpha() and folded.isascii():
        return folded
    if folded.isascii():
        chosen = language if language in _LATIN_LANGUAGES else "en"
        stem = _stemmer(chosen).stem_word
        return (stem(folded) if chosen == "en" else fold_word(stem(word.casefold()))) or folded
    script = script_of(folded[0])
    if script not in _OTHER_SCRIPTS or language in _UNSTEMMED:
        return folded
    # The Arabic stemmer needs the letters that folding unifies.
    stemmed = _stemmer(script).stem_word(remove_points(word) if script == "ar" else folded)
    return fold_word(stemmed) or folded


# Index terms


class _ChunkCache(dict[str, str]):
    """Terms of each piece of text between blanks, joined by blanks; those after the words are marked."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language

    def __missing__(self, chunk: str) -> str:
        if len(chunk) <= MAX_TERM_CHARS and (plain := _PLAIN_CHUNK.fullmatch(chunk)):
            terms = stem_word(plain[1].lower(), self._language)
        else:
            terms = " ".join(_terms_of_chunk(chunk, self._language))
        if len(chunk) <= MAX_CACHED_CHUNK_CHARS:
            if len(self) >= MAX_CACHED_CHUNKS:
                self.clear()
            self[chunk] = terms
        return terms


@cache
def _chunk_cache(language: str) -> _ChunkCache:
    return _ChunkCache(language)


@cache
def _stemmer(language: str) -> SnowballStemmer:
    return SnowballStemmer(_STEMMER_NAMES[language])


def _terms_of_chunk(chunk: str, language: str) -> Iterator[str]:
    for piece in normalize_characters(chunk).split():
        for found in find_compounds(piece):
            match found:
                case Run():
                    yield from list_bigrams(found.text)
                    yield from (_EXTRA + single for single in list_singles(found.text))
                case Emoji():
                    yield (plain := get_plain_emoji(found.text))
                    if plain != found.text:
                        yield _EXTRA + found.text
                case Compound():
                    yield from (stem_word(part, language) for part in found.parts)
                    yield from (_EXTRA + term for term in _further_terms(found, language))


def _further_terms(found: Compound, language: str) -> Iterator[str]:
    yield from filter(None, map(find_exact_form, found.parts))
    yield from (stem_word(whole, language) for whole in found.wholes)
    yield from (stem_word(extra, language) for extra in found.extras)


# Query terms


def _query_terms(query: str, languages: tuple[str, ...]) -> Iterator[QueryTerm]:
    """Yield the words of a query and the forms of its compounds."""
    detected = detect_language(query)
    stop_words = list_stop_words(detected)
    if not stop_words:
        stop_words = list_stop_words("en") | (list_stop_words(languages[0]) if languages else frozenset())
    number = 0
    for chunk in query.split():
        for piece in normalize_characters(chunk).split():
            contracted = find_contracted(piece)
            row: list[str] = []
            for found in find_compounds(piece):
                match found:
                    case Run():
                        yield from _run_terms(found.text)
                        row.append(found.text)
                    case Emoji():
                        yield QueryTerm((get_plain_emoji(found.text),), word=found.text)
                        if found.text != get_plain_emoji(found.text):
                            yield QueryTerm((found.text,), EXACT_WEIGHT)
                    case Compound():
                        for part in found.parts:
                            is_function = part.lower() in contracted or is_function_word(part, number, stop_words)
                            weight = FUNCTION_WORD_WEIGHT if is_function else 1.0
                            yield QueryTerm(stem_alternatives(part, languages), weight, part.lower())
                            number += 1
                        yield from _form_terms(found, languages)
                        row += found.parts
            if len(row) > 1 and not contracted and "'" not in piece:
                yield from _phrases(row, languages)


def _form_terms(found: Compound, languages: tuple[str, ...]) -> Iterator[QueryTerm]:
    for part in found.parts:
        if exact := find_exact_form(part):
            yield QueryTerm((exact,), EXACT_WEIGHT)
    for whole in found.wholes:
        yield QueryTerm(stem_alternatives(whole, languages), WHOLE_WEIGHT)
    if len(found.parts) == 1 and found.phrase:
        yield from _phrases(found.phrase, languages)


def _phrases(parts: Sequence[str], languages: tuple[str, ...]) -> Iterator[QueryTerm]:
    """Yield the phrase of some words in each language."""
    if len(parts) <= MAX_PHRASE_TERMS:
        phrases = (tuple(stem_word(part, each) for part in parts) for each in languages or ("en",))
        yield from (QueryTerm((), PHRASE_WEIGHT, "", phrase) for phrase in dict.fromkeys(phrases))


def _run_terms(run: str) -> Iterator[QueryTerm]:
    bigrams = list_bigrams(run)
    yield from (QueryTerm((bigram,), 1.0, bigram) for bigram in bigrams)
    if 1 < len(bigrams) <= MAX_PHRASE_TERMS:
        yield QueryTerm((), PHRASE_WEIGHT, "", tuple(bigrams))
