"""Words of a query: which of them carry meaning, and their other forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kgserve.platform.text.wordlists import forms

# The function words of a question ("what", "did", "her") are in every second text and say nothing about the answer, but
# BM25 counts each of them; in a small store even a great deal. They keep a tenth of their weight: enough to decide
# between texts that are alike otherwise, and to find something for a query that has no other words.
FUNCTION_WORD_WEIGHT = 0.1
FORM_WEIGHT = 0.5
MAX_WORDS = 256
# As the analyzer of the keyword index cuts: at everything that is neither letter nor digit.
_ALPHANUMERIC_WORD_PATTERN = re.compile(r"[^\W_]+")
_CONTRACTION = re.compile(r"([^\W_]+)n['\u2019]t\b|(?<=[^\W_])['\u2019](?:s|d|m|ll|re|ve)\b", re.IGNORECASE)
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
"""Questions and connections; articles, pronouns, quantities; verbs that carry a tense or a mood; places; degrees."""


def word_weights(query: str) -> dict[str, float]:
    """The distinct words of a query in order, each with the factor for its BM25 score: 1, or less for function words.

    Where all are function words, all count fully. A capital inside a sentence makes a name, so "May" and "Will" are
    words like others there. English; words of other languages count fully. At most 256 words.
    """
    weights: dict[str, float] = {}
    for word, weight in _weighed(query):
        weights[word] = max(weight, weights.get(word, 0.0))
        if len(weights) == MAX_WORDS:
            break
    if all(weight < 1.0 for weight in weights.values()):
        return dict.fromkeys(weights, 1.0)
    return weights


def content_words(query: str) -> list[str]:
    """Return the distinct words of a query that are no function words, in order, at most 256."""
    found = dict.fromkeys(word for word, weight in _weighed(query) if weight >= 1.0)
    return [*found][:MAX_WORDS]


def with_forms(weights: Mapping[str, float]) -> dict[str, float]:
    """The same words, and behind them at half their weight what else they may be: went for go."""
    found, known = dict(weights), forms()
    for word, weight in weights.items():
        if weight == 1.0:
            for other in sorted(known.get(word, ())):
                found.setdefault(other, FORM_WEIGHT)
    return found


def _weighed(query: str) -> Iterator[tuple[str, float]]:
    """Every word, lower case, with its weight."""
    contractions = [match.span() for match in _CONTRACTION.finditer(query)]
    for number, match in enumerate(_ALPHANUMERIC_WORD_PATTERN.finditer(query)):
        while contractions and contractions[0][1] <= match.start():
            del contractions[0]
        contracted = bool(contractions) and contractions[0][0] <= match.start()
        yield match[0].lower(), FUNCTION_WORD_WEIGHT if contracted or _is_function(match[0], number) else 1.0


def _is_function(word: str, number: int) -> bool:
    """Whether the word at a place in the query only holds the sentence together."""
    return word.lower() in FUNCTION_WORDS and (number == 0 or word.islower() or word == "I")
