"""Analysis of texts into index terms. The index, queries and term scores use the same code.

A text is divided at blanks, and the terms of each piece are cached. The terms of all words come in order, as phrases
match them, followed by further forms: compounds as a whole, words with their accents, single Han characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain

from kgserve.platform.text.identifier_parts import (
    MAX_TERM_CHARS,
    CompoundWord,
    Emoji,
    UnspacedScriptRun,
    iterate_word_and_emoji_tokens,
)
from kgserve.platform.text.language_detection import (
    MAX_DETECTED_CHARS,
    TO_ASCII_WORDS,
    detect_language,
    detect_language_by_words,
)
from kgserve.platform.text.segmentation import (
    list_character_bigrams,
    list_cjk_run_unigrams,
    normalize_characters,
    split_emoji_and_drop_skin_tones,
)
from kgserve.platform.text.stemmer import fold_and_stem_unless_english, get_stemming_language, stem_prepared
from kgserve.platform.text.word_normalization import get_accented_form, simplify_han_characters

ANALYZER_VERSION = "1"
"""Version of the analysis. Indexes of another version are filled again."""
MAX_CACHED_CHUNKS = 1 << 15
MAX_CACHED_CHUNK_CHARS = 32

# Occurs in every ASCII text with a compound or sign that `iterate_word_and_emoji_tokens` treats in a special way.
_COMPOUND = re.compile(
    r"[-_.:&+#@$A-Z0-9](?:"
    r"(?<=[-_.:&#@$])(?=[A-Za-z0-9])|(?<=\+\+)|(?<=[A-Za-z]#)|(?<=[0-9],[0-9])(?=[0-9]{2})|(?<=[A-Z]'[A-Z])"
    r"|(?<=[a-z][A-Z])|(?<=[A-Z]{2})(?=[a-z])|(?<=[A-Za-z]{3}[0-9])|(?<=[vV][0-9])|(?<=[0-9])(?=[A-Za-z]{2}))"
)
# The most frequent kind of compound in prose.
_HYPHENATED = re.compile(r"[(\"']*([A-Za-z]?[a-z]+)-([a-z]+)[)\"'.,;:!?]*")
_NUMBERED_ID = re.compile("[a-z]{0,2}[0-9]+")
_EXTRA = "\x01"
_EXTRA_TERM = re.compile(r"\x01(\S+) ?")


def extract_index_terms(text: str, language: str, *, further: bool = True) -> list[str]:
    """Return the index terms of a text in a language, given as ISO 639-1 code.

    Without ``further`` forms, they are those that phrases match.
    """
    prepared = _prepare_chunks(text, language)
    prepared = _order(prepared) if further else _EXTRA_TERM.sub("", prepared)
    return [*map(stem_prepared.__getitem__, prepared.split())]


def join_unstemmed_index_terms(text: str, language: str) -> str:
    """Return the terms of a text separated by blanks, still without the last step of `stemmer`."""
    return text if _NUMBERED_ID.fullmatch(text) else _order(_prepare_chunks(text, language))


def detect_language_and_unstemmed_terms(text: str) -> tuple[str, str]:
    """Return the detected language of a text, and its terms as `join_unstemmed_index_terms`."""
    if not text.isascii() or len(text) > MAX_DETECTED_CHARS:
        language = detect_language(text)
        return language, _order(_prepare_chunks(text, language))
    words = text.translate(TO_ASCII_WORDS)
    language = detect_language_by_words(words)
    if get_stemming_language(language) == "en" and not _COMPOUND.search(text):
        return language, words
    return language, _order(_prepare_chunks(text, language))


def _prepare_chunks(text: str, language: str) -> str:
    """Return the prepared terms of a text, separated by blanks; further forms are marked."""
    stemming = get_stemming_language(language)
    known = _chunk_cache(stemming)
    if stemming != "en" or not text.isascii() or len(text) > MAX_TERM_CHARS:
        return " ".join(map(known.__getitem__, text.split()))
    compounds = _COMPOUND.finditer(text)
    if (first := next(compounds, None)) is None:
        return text.translate(TO_ASCII_WORDS)
    if not text.isprintable():
        return " ".join(map(known.__getitem__, text.split()))
    terms: list[str] = []
    further: list[str] = []
    done = 0
    for found in chain((first,), compounds):
        if (at := found.start()) >= done:
            begin = max(text.rfind(" ", done, at) + 1, done)
            end = text.find(" ", at)
            if end < 0:
                end = len(text)
            words, mark, forms = known[text[begin:end]].partition(_EXTRA)
            terms += text[done:begin].translate(TO_ASCII_WORDS), words
            if mark:
                further.append(_EXTRA + forms)
            done = end
    terms.append(text[done:].translate(TO_ASCII_WORDS))
    return " ".join(terms + further)


def _is_plain(text: str) -> bool:
    """Return whether a text is ASCII without compounds."""
    return text.isascii() and len(text) <= MAX_TERM_CHARS and not _COMPOUND.search(text)


def _order(joined: str) -> str:
    """Return terms with those that are marked as further forms at the end."""
    if _EXTRA not in joined:
        return joined
    words, _, further = joined.partition(_EXTRA)
    if further.count(" ") == further.count(_EXTRA):
        return words + further.replace(_EXTRA, "")
    return f"{_EXTRA_TERM.sub('', joined)} {' '.join(_EXTRA_TERM.findall(joined))}"


class _ChunkCache(dict[str, str]):
    """Prepared terms of each piece of text between blanks, joined by blanks; further forms are marked."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._language = language

    def __missing__(self, chunk: str) -> str:
        if self._language == "en" and (hyphenated := _HYPHENATED.fullmatch(chunk)):
            before, after = hyphenated[1].lower(), hyphenated[2]
            terms = f"{before} {after} {_EXTRA}{before}{after}"
        elif _is_plain(chunk):
            words = chunk.translate(TO_ASCII_WORDS)
            is_english = self._language == "en"
            terms = (
                words
                if is_english
                else " ".join(fold_and_stem_unless_english(word, self._language) for word in words.split())
            )
        else:
            terms = " ".join(sorted(_terms_of_chunk(chunk, self._language), key=_is_further))
        if len(chunk) <= MAX_CACHED_CHUNK_CHARS:
            if len(self) >= MAX_CACHED_CHUNKS:
                self.clear()
            self[chunk] = terms
        return terms


def _is_further(term: str) -> bool:
    return term[0] == _EXTRA


@cache
def _chunk_cache(language: str) -> _ChunkCache:
    return _ChunkCache(language)


def _terms_of_chunk(chunk: str, language: str) -> Iterator[str]:
    for piece in normalize_characters(chunk).split():
        for found in iterate_word_and_emoji_tokens(piece):
            match found:
                case UnspacedScriptRun():
                    run = simplify_han_characters(found.text)
                    yield from list_character_bigrams(run)
                    further = list_cjk_run_unigrams(run)
                    if run != found.text:
                        further += set(list_character_bigrams(found.text)).difference(list_character_bigrams(run))
                    yield from (_EXTRA + each for each in further)
                case Emoji():
                    plain, *others = split_emoji_and_drop_skin_tones(found.text)
                    yield plain
                    yield from (_EXTRA + each for each in (*others, found.text) if each != plain)
                case CompoundWord():
                    yield from (fold_and_stem_unless_english(part, language) for part in found.parts)
                    yield from (_EXTRA + term for term in _further_terms(found, language))


def _further_terms(found: CompoundWord, language: str) -> Iterator[str]:
    yield from filter(None, map(get_accented_form, found.parts))
    yield from (fold_and_stem_unless_english(whole, language) for whole in found.wholes)
    yield from (fold_and_stem_unless_english(extra, language) for extra in found.extras)
