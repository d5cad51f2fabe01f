"""Analysis of queries into the index terms that `analyzer` finds in texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from kgserve.platform.text.analyzer import extract_index_terms
from kgserve.platform.text.function_and_content_words import (
    FORM_WEIGHT,
    FUNCTION_WORD_WEIGHT,
    MAX_WEIGHTED_WORDS,
    find_contraction_parts,
    is_function_word,
)
from kgserve.platform.text.identifier_parts import (
    CompoundWord,
    Emoji,
    UnspacedScriptRun,
    list_word_and_emoji_tokens,
)
from kgserve.platform.text.language_detection import detect_language, list_stop_words
from kgserve.platform.text.segmentation import (
    list_character_bigrams,
    normalize_characters,
    split_emoji_and_drop_skin_tones,
)
from kgserve.platform.text.stemmer import stem_prepared, stem_word
from kgserve.platform.text.word_normalization import fold_word, get_accented_form, simplify_han_characters
from kgserve.platform.text.wordlists import load_irregular_forms

FURTHER_WEIGHT = 0.2
"""Factor of a compound written together, and of its parts in a row, next to the parts."""
NAME_WEIGHT = 1.0
"""The same for identifiers and numbers, where the parts alone say little."""
EXACT_WEIGHT = 0.5
"""Factor of a word with its accents, next to the word without them."""
RUN_WEIGHT = 0.5
"""Factor of a run of Chinese, Thai or the like as a whole, next to its pairs of characters."""
MAX_PHRASE_TERMS = 12

_SEPARATOR = re.compile(r"[/\\.:@=]")
_WITHOUT_APOSTROPHE = re.compile("((?:is|are|was|were|do|does|did|has|have|had|ca|wo|would|could|should|must|need)n)t")
_HEBREW_PREFIXES = "הובלמשכ"
_MIN_PREFIXED_CHARS = 4
_DIGRAPH = re.compile("[aou]e")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_DIGRAPHS = {"ae": "ä", "oe": "ö", "ue": "ü"}


class QueryTerm(msgspec.Struct, frozen=True):
    """Word of a query: the terms that it may have in the index, and the factor of its score.

    ``word`` is the word in lower case, "" for forms of a compound, which are not words. A term with a
    ``phrase`` matches these terms in a row instead of ``stems``.
    """

    stems: tuple[str, ...]
    weight: float = 1.0
    word: str = ""
    phrase: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def stem_search_query_words(
    query: str, languages: tuple[str, ...], *, content_only: bool = False, irregular: bool = False
) -> tuple[QueryTerm, ...]:
    """Return the words of a query, stemmed in each of the languages, most important language first.

    Function words have a tenth of the weight, unless there are no others; ``content_only`` omits them. The forms of
    compounds follow: compounds as a whole, phrases of their parts, words with their accents, and ``irregular`` forms
    such as went for go, at half weight.
    """
    words: dict[tuple[str, ...], QueryTerm] = {}
    others: dict[QueryTerm, None] = {}
    for term in _query_terms(query, languages or ("en",)):
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
    found = [*words.values()]
    return (*found, *(_irregular_forms(found) if irregular else ()), *others)


def compute_query_word_coverage(query: str, text: str) -> float:
    """Return the share of the content words of a query that a text contains; 1 for a script without spaces."""
    language = detect_language(text)
    words = [term for term in stem_search_query_words(query, (language,), content_only=True) if term.word]
    if not words:
        return 1.0
    terms = {*extract_index_terms(text, language)}
    return sum(not terms.isdisjoint(term.stems) for term in words) / len(words)


def list_prefix_terms_of_last_query_word(query: str) -> list[str]:
    """Return the beginnings that words may have to match the end of a query: its last word, and compound."""
    chunk = normalize_characters(query).split()[-1:]
    found = [*list_word_and_emoji_tokens(chunk[0])] if chunk else []
    match found[-1:]:
        case [CompoundWord() as last]:
            return [*dict.fromkeys(fold_word(form) for form in (last.parts[-1], *last.wholes[:1]))]
        case [UnspacedScriptRun() as run]:
            return [run.text] if len(found) == 1 and len(list_character_bigrams(run.text)[0]) == len(run.text) else []
        case _:
            return []


@lru_cache(maxsize=1 << 12)
def list_possible_stems_of_query_word(word: str, languages: tuple[str, ...]) -> tuple[str, ...]:
    """Return the distinct terms that a word of a query may have in texts of some languages."""
    stems = dict.fromkeys(stem_word(word, each) for each in languages)
    if "\u05d0" <= word[0] <= "\u05ea":
        stems.update(dict.fromkeys(_hebrew_forms(fold_word(word))))
    if not word.isascii():
        folded, spelled = fold_word(word), word.lower().translate(_UMLAUTS)
        stems.update(dict.fromkeys(stem_word(form, each) for form in (folded, spelled) for each in languages))
    elif _DIGRAPH.search(word.lower()):
        stems[stem_prepared[_DIGRAPH.sub(lambda found: _DIGRAPHS[found[0]], word.lower())]] = None
    return tuple(stems)


def _hebrew_forms(word: str) -> Iterator[str]:
    """Yield a Hebrew word with each of the prepositions and articles that are written as its prefix, and without."""
    yield from (prefix + word for prefix in _HEBREW_PREFIXES)
    if len(word) >= _MIN_PREFIXED_CHARS and word[0] in _HEBREW_PREFIXES:
        yield word[1:]
        yield from (prefix + word[1:] for prefix in _HEBREW_PREFIXES)


def _query_terms(query: str, languages: tuple[str, ...]) -> Iterator[QueryTerm]:
    """Yield the words of a query and the forms of its compounds."""
    # Words of languages without a list are weighed as English, and as in most texts of the index.
    stop_words = list_stop_words(detect_language(query)) or list_stop_words("en") | list_stop_words(languages[0])
    number = 0
    for piece in normalize_characters(query).split():
        contracted = find_contraction_parts(piece)
        row: list[str] = []
        is_name = _is_path(piece)
        for found in list_word_and_emoji_tokens(piece):
            match found:
                case UnspacedScriptRun():
                    yield from _run_terms(found.text)
                case Emoji():
                    plain = split_emoji_and_drop_skin_tones(found.text)
                    yield QueryTerm((plain[0],), word=plain[0])
                    yield from (
                        QueryTerm((each,), EXACT_WEIGHT) for each in (*plain[1:], found.text) if each != plain[0]
                    )
                case CompoundWord():
                    for part in found.parts:
                        is_function = part.lower() in contracted or is_function_word(part, number, stop_words)
                        weight = FUNCTION_WORD_WEIGHT if is_function else 1.0
                        yield QueryTerm(list_possible_stems_of_query_word(part, languages), weight, part.lower())
                        number += 1
                    yield from _form_terms(found, languages)
                    row += found.parts
                    is_name = is_name or found.is_name
        if contracted:
            yield from _contraction_terms(piece)
        elif len(row) > 1:
            yield from _phrases(row, languages, NAME_WEIGHT if is_name else FURTHER_WEIGHT)
        elif row and (contraction := _WITHOUT_APOSTROPHE.fullmatch(row[0].lower())):
            yield QueryTerm((), 1.0, "", (stem_prepared[contraction[1]], "t"))


def _form_terms(found: CompoundWord, languages: tuple[str, ...]) -> Iterator[QueryTerm]:
    for exact in filter(None, map(get_accented_form, found.parts)):
        yield QueryTerm((stem_prepared[exact],), EXACT_WEIGHT)
    for whole in found.wholes:
        yield QueryTerm(
            list_possible_stems_of_query_word(whole, languages), NAME_WEIGHT if found.is_name else FURTHER_WEIGHT
        )
    if len(found.parts) == 1 and found.phrase:
        yield from _phrases(found.phrase, languages, NAME_WEIGHT)


def _is_path(piece: str) -> bool:
    """Return whether a piece between blanks has more separators than alternatives such as and/or have."""
    return len(_SEPARATOR.findall(piece.strip("/.:"))) > 1


def _contraction_terms(piece: str) -> Iterator[QueryTerm]:
    """Yield a contraction without its apostrophe."""
    written = piece.replace("'", "").lower()
    if _WITHOUT_APOSTROPHE.fullmatch(written):
        yield QueryTerm((stem_prepared[written],), FURTHER_WEIGHT)


def _phrases(parts: Sequence[str], languages: tuple[str, ...], weight: float) -> Iterator[QueryTerm]:
    """Yield the phrase of some words in each language."""
    if len(parts) <= MAX_PHRASE_TERMS:
        phrases = (tuple(stem_word(part, each) for part in parts) for each in languages)
        yield from (QueryTerm((), weight, "", phrase) for phrase in dict.fromkeys(phrases))


def _run_terms(run: str) -> Iterator[QueryTerm]:
    bigrams = list_character_bigrams(simplify_han_characters(run))
    yield from (QueryTerm((bigram,), 1.0, bigram) for bigram in bigrams)
    yield from (QueryTerm((each,), EXACT_WEIGHT) for each in list_character_bigrams(run) if each not in bigrams)
    if 1 < len(bigrams) <= MAX_PHRASE_TERMS:
        yield QueryTerm((), RUN_WEIGHT, "", tuple(bigrams))


def _irregular_forms(words: Sequence[QueryTerm]) -> Iterator[QueryTerm]:
    known = load_irregular_forms()
    taken = {term.word for term in words}
    forms = (form for term in words if term.weight == 1.0 for form in sorted(known.get(term.word, ())))
    for form in dict.fromkeys(forms):
        if form not in taken:
            yield QueryTerm((stem_word(form, "en"),), FORM_WEIGHT, form)
