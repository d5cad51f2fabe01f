"""Words of a query: function words and content words, and irregular forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kgserve.platform.text.wordlists import load_irregular_forms

# Function words ("what", "did", "her") say little about an answer, but BM25 overrates them in small stores. They keep
# a tenth of their weight, which breaks ties and still finds results for queries without other words.
FUNCTION_WORD_WEIGHT = 0.1
FORM_WEIGHT = 0.5
MAX_WEIGHTED_WORDS = 256
# Splits like the analyzer of the keyword index, at everything except letters and digits.
_ALPHANUMERIC_WORD_PATTERN = re.compile(r"[^\W_]+")
_CONTRACTION = re.compile(r"([^\W_]+)n['\u2019]t\b|(?<=[^\W_])['\u2019](?:s|d|m|ll|re|ve)\b", re.IGNORECASE)
# Articles and pronouns of Romance languages that lose their vowel, as in l'eau.
_ELISION = re.compile(r"\b(?:[cdjlmnst]|qu)(?='[^\W\d_])", re.IGNORECASE)
_ENGLISH = """
what when where which who whom whose why how and or but nor if then than because as while although though whether so
yet not no yes
a an the this that these those i me my mine myself you your yours yourself he him his himself she her hers herself it
its itself we us our ours ourselves they them their theirs themselves there here
any some all both each every either neither such other another same own much many more most few several
am is are was were be been being do does did doing done have has had having can could shall should will would may might
must ought
of in on at by for with about against between into through during before after above below to from up down out off over
under again within without upon per
very too also just only even still ever
"""
FUNCTION_WORDS = frozenset(_ENGLISH.split())
"""Question words, conjunctions, articles, pronouns, quantifiers, auxiliary verbs, prepositions, degree adverbs."""


def compute_query_word_weights(query: str) -> dict[str, float]:
    """Return the distinct words of a query in order, with factors for their BM25 scores: 1, or less for function words.

    If all words are function words, all have factor 1. A capitalized word inside a sentence counts as a name, such as
    "May" and "Will". The rules are English; words of other languages have factor 1. At most 256 words are returned.
    """
    weights: dict[str, float] = {}
    for word, weight in _weighed(query):
        weights[word] = max(weight, weights.get(word, 0.0))
        if len(weights) == MAX_WEIGHTED_WORDS:
            break
    if all(weight < 1.0 for weight in weights.values()):
        return dict.fromkeys(weights, 1.0)
    return weights


def find_content_words(query: str) -> list[str]:
    """Return up to 256 distinct words of a query that are not function words, in order."""
    found = dict.fromkeys(word for word, weight in _weighed(query) if weight >= 1.0)
    return [*found][:MAX_WEIGHTED_WORDS]


def add_irregular_word_forms(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the words together with their irregular forms at half weight, such as went for go."""
    found, known = dict(weights), load_irregular_forms()
    for word, weight in weights.items():
        if weight == 1.0:
            for other in sorted(known.get(word, ())):
                found.setdefault(other, FORM_WEIGHT)
    return found


def _weighed(query: str) -> Iterator[tuple[str, float]]:
    """Yield every word in lower case, with its weight."""
    contractions = [match.span() for match in _CONTRACTION.finditer(query)]
    for number, match in enumerate(_ALPHANUMERIC_WORD_PATTERN.finditer(query)):
        while contractions and contractions[0][1] <= match.start():
            del contractions[0]
        contracted = bool(contractions) and contractions[0][0] <= match.start()
        yield match[0].lower(), FUNCTION_WORD_WEIGHT if contracted or is_function_word(match[0], number) else 1.0


def find_contraction_parts(chunk: str) -> frozenset[str]:
    """Return the words of a piece between blanks that are parts of contractions, such as didn, t and s."""
    if "'" not in chunk:
        return frozenset()
    found = [match[0] for match in _CONTRACTION.finditer(chunk)] + _ELISION.findall(chunk)
    return frozenset(word.lower() for each in found for word in _ALPHANUMERIC_WORD_PATTERN.findall(each))


def is_function_word(word: str, number: int, stop_words: frozenset[str] = FUNCTION_WORDS) -> bool:
    """Return whether the word at a position in a query is a function word.

    A capitalized word inside a sentence is a name, except for I.
    """
    return word.lower() in stop_words and (number == 0 or word.islower() or word == "I")
