"""Stemming of words by the Snowball algorithms, in two steps.

`fold_and_stem_unless_english` stems in the language of the text, except in English. `stem_prepared` then applies the
English stemmer to every term, whatever its language. The keyword index does the second step itself, in Rust, which
spares Python most of the work for English texts; other stems hardly change by it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

import tantivy

from kgserve.platform.text.language_detection import get_single_letter_script_language
from kgserve.platform.text.languages import LANGUAGES
from kgserve.platform.text.word_normalization import casefold_without_accents, fold_word

MAX_CACHED_STEMS = 1 << 16
MAX_LATIN_LANGUAGES = 6
MAX_TEXTS_PER_LANGUAGE = 20_000
"""Queries are stemmed in a language if it has at least one text per this number of texts."""
_STEMMER_NAMES: dict[str, str] = {
    "ar": "arabic", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "fi": "finnish",
    "fr": "french", "hu": "hungarian", "it": "italian", "nl": "dutch", "no": "norwegian", "pt": "portuguese",
    "ro": "romanian", "ru": "russian", "sv": "swedish", "ta": "tamil", "tr": "turkish",
}  # fmt: skip
_OTHER_SCRIPTS: frozenset[str] = frozenset({"ar", "el", "ru", "ta"})
_LATIN_LANGUAGES = frozenset(LANGUAGES) - _OTHER_SCRIPTS - {"en"}
# Languages that share a script with a stemmed language but are not stemmed.
_UNSTEMMED = frozenset({"uk", "fa", "ur"})


def get_stemming_language(language: str) -> str:
    """Return the language itself if its texts are stemmed in a way of their own, else ``en``.

    Words of other scripts are stemmed in every text, in the language that their script stands for.
    """
    return language if language in _STEMMER_NAMES or language in _UNSTEMMED else "en"


def select_query_stemming_languages(counts: Mapping[str, int], documents: int, default: str) -> tuple[str, ...]:
    """Return the languages in which to stem the words of a query, most frequent first.

    ``counts`` are the numbers of texts by language. Rare languages of Latin script are left out, since each costs a
    lookup for every word of every query. ``default`` is the language of all other texts.
    """
    least = documents / MAX_TEXTS_PER_LANGUAGE
    ranked = sorted(counts, key=counts.__getitem__, reverse=True)
    latin = [each for each in ranked if each in _LATIN_LANGUAGES and counts[each] >= least][:MAX_LATIN_LANGUAGES]
    chosen = (get_stemming_language(each) for each in ranked if each not in _LATIN_LANGUAGES or each in latin)
    return tuple(dict.fromkeys((*chosen, default)))


def stem_word(word: str, language: str) -> str:
    """Return the index term of a word in NFKC, as in a text of a language."""
    return stem_prepared[fold_and_stem_unless_english(word, language)]


@lru_cache(maxsize=MAX_CACHED_STEMS)
def fold_and_stem_unless_english(word: str, language: str) -> str:
    """Return a word in NFKC folded, and stemmed unless it is English."""
    folded = fold_word(word)
    if folded.isascii():
        if language not in _LATIN_LANGUAGES or not folded.isalpha():
            return folded
        return fold_word(_stemmer(language)(word.casefold())) or folded
    script = get_single_letter_script_language(folded[0])
    if script not in _OTHER_SCRIPTS or language in _UNSTEMMED:
        return folded
    # The Arabic stemmer needs the letters that folding unifies.
    stemmed = _stemmer(script)(casefold_without_accents(word) if script == "ar" else folded)
    return fold_word(stemmed) or folded


class _EnglishStems(dict[str, str]):
    """Index term of each prepared word."""

    def __missing__(self, prepared: str) -> str:
        if len(self) >= MAX_CACHED_STEMS:
            self.clear()
        stem = self[prepared] = _stemmer("en")(prepared)
        return stem


stem_prepared = _EnglishStems()
"""The index term of each prepared word; terms are computed when they are looked up."""


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    """Return the stemmer of tantivy for a language, which other implementations of Snowball differ from."""
    stemming = tantivy.Filter.stemmer(_STEMMER_NAMES[language])
    analyzer = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.raw()).filter(stemming).build()
    lock = threading.Lock()

    def stem(word: str) -> str:
        with lock:
            return analyzer.analyze(word)[0]

    return stem
