"""Languages of texts: which ones are stemmed, and detection by script and function words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from kgserve.platform.text.function_and_content_words import FUNCTION_WORDS
from kgserve.platform.text.wordlists import load_stop_words

MAX_DETECTED_CHARS = 400
"""Number of characters at the beginning of a text that detection reads."""
_SAMPLE_CHARS = 48
_CLUE_BITS = 12
_EXCLUSIVE_CLUE = 12
_LETTER_CLUE = 4
# More than one word that only this language has.
_MIN_CLUES = 14
_MIN_CLUE_WORDS = 2
_MIN_LEAD = 1.25
_MIN_NON_LATIN_SHARE = 0.3
_MIN_KANA_SHARE = 0.1
# The language that a script mostly stands for, by the first code point of a range; "" for none.
_SCRIPTS = (
    (0x0000, ""), (0x0041, "latin"), (0x0370, "el"), (0x0400, "ru"), (0x0530, "hy"), (0x0590, "he"), (0x0600, "ar"),
    (0x0700, ""), (0x0750, "ar"), (0x0780, ""), (0x08A0, "ar"), (0x0900, "hi"), (0x0980, "bn"), (0x0A00, "pa"),
    (0x0A80, "gu"), (0x0B00, "or"), (0x0B80, "ta"), (0x0C00, "te"), (0x0C80, "kn"), (0x0D00, "ml"), (0x0D80, "si"),
    (0x0E00, "th"), (0x0E80, "lo"), (0x0F00, "bo"), (0x1000, "my"), (0x10A0, "ka"), (0x1100, "ko"), (0x1200, "am"),
    (0x13A0, ""), (0x1780, "km"), (0x1800, "mn"), (0x18B0, ""), (0x1C80, "ka"), (0x1CC0, ""), (0x1E00, "latin"),
    (0x1F00, "el"), (0x2000, ""), (0x2DE0, "ru"), (0x2E00, ""), (0x3040, "ja"), (0x3100, ""), (0x3130, "ko"),
    (0x3190, ""), (0x31F0, "ja"), (0x3200, ""), (0x3400, "zh"), (0xA000, ""), (0xAC00, "ko"), (0xD7B0, ""),
    (0xF900, "zh"), (0xFB00, ""), (0xFB1D, "he"), (0xFB50, "ar"), (0xFE00, ""), (0xFE70, "ar"), (0xFF00, ""),
    (0xFF21, "latin"), (0xFF66, "ja"), (0xFFA0, ""), (0x20000, "zh"), (0x40000, ""),
)  # fmt: skip
_STARTS = [start for start, _ in _SCRIPTS]
_LETTERS_OF = {
    "da": "æøå", "de": "äöüß", "es": "ñ¿¡áíó", "fi": "äö", "fr": "éèêëçàâîôûùœ", "hu": "áéíóöőúüű", "it": "àèìòù",
    "nl": "ëï", "no": "æøå", "pt": "ãõçáâéêíó", "ro": "ăâîșțşţ", "sv": "åäö", "tr": "çğıöşüİ",
}  # fmt: skip
_PERSIAN = re.compile("[پچژگکی]")
_URDU = re.compile("[ٹڈڑںےہ]")
_UKRAINIAN = re.compile("[іїєґІЇЄҐ]")
_OTHER_SCRIPT = re.compile("[\u0370-\u1dff\u2de0-\uff20\uff66-\U0010ffff]")
_OTHER_LETTER = re.compile(r"[^\x00-\x7f]")
# Two of these words are in most English texts, and in hardly any others.
_FREQUENT_ENGLISH = (" the ", " of ", " and ", " is ", " to ", " that ", " you ", " with ")
_MIN_FREQUENT_ENGLISH = 2
_WORD = re.compile(r"[^\W\d_]+")
TO_ASCII_WORDS = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
"""Table for `str.translate` of ASCII texts: letters in lower case and digits, and blanks for all other characters."""


def detect_language(text: str) -> str:
    """Return the ISO 639-1 code of a text's language, which may have no stemmer; "" if none is likely.

    A script of one language is enough. Latin texts need function words or letters of one language.
    """
    if text.isascii():
        return detect_language_by_words(text[:MAX_DETECTED_CHARS].translate(TO_ASCII_WORDS))
    if _OTHER_SCRIPT.search(text) and (found := _detect_by_script(text)) != "latin":
        return found
    beginning = text[:MAX_DETECTED_CHARS].lower()
    return _detect_by_clues(_WORD.findall(beginning), beginning)


def detect_language_by_words(text: str) -> str:
    """Return the language of an ASCII text as `detect_language`, from its words in lower case, separated by blanks."""
    frequent = 0
    for word in _FREQUENT_ENGLISH:
        if word in text:
            frequent += 1
            if frequent == _MIN_FREQUENT_ENGLISH:
                return "en"
    words = text.split()
    exclusive, others = _exclusive_words()
    # English texts are decided by words that no other language has.
    if not exclusive.isdisjoint(words) and others.isdisjoint(words):
        return "en"
    return _detect_by_clues(words)


def get_single_letter_script_language(letter: str) -> str:
    """Return the language that the script of a letter mostly stands for, ``latin``, or "" for no letter."""
    return _blocks[ord(letter)]


def list_stop_words(language: str) -> frozenset[str]:
    """Return the function words of a language, in lower case; none for a language without a list."""
    return FUNCTION_WORDS if language == "en" else load_stop_words().get(language, frozenset())


class _ScriptCache(dict[int, str]):
    """Script of each code point that occurred."""

    def __missing__(self, code: int) -> str:
        found = self[code] = _SCRIPTS[bisect_right(_STARTS, code) - 1][1]
        return found


_blocks = _ScriptCache()


def _detect_by_script(text: str) -> str:
    """Return the language of a text by its script, ``latin``, or "" for no letters."""
    sample = text if len(text) <= _SAMPLE_CHARS else text[:: len(text) // _SAMPLE_CHARS]
    counts = Counter(map(_blocks.__getitem__, map(ord, sample)))
    del counts[""]
    total = counts.total()
    counts["zh"] *= 2
    counts["ja"] *= 2
    latin = counts.pop("latin", 0)
    best = max(counts, key=counts.__getitem__, default="")
    if not best or counts[best] < _MIN_NON_LATIN_SHARE * total:
        return "latin" if latin else ""
    if best in {"zh", "ja"}:
        return "ja" if counts["ja"] > _MIN_KANA_SHARE * (counts["zh"] + counts["ja"]) else "zh"
    if best == "ar":
        return "ur" if _URDU.search(text) else "fa" if _PERSIAN.search(text) else "ar"
    return "uk" if best == "ru" and _UKRAINIAN.search(text) else best


# Each language with a list of function words has a counter of some bits in one large number.


@lru_cache(maxsize=1)
def _places() -> dict[str, int]:
    return {code: place * _CLUE_BITS for place, code in enumerate(_LETTERS_OF | {"en": ""})}


@lru_cache(maxsize=1)
def _clues_by_word() -> dict[str, int]:
    lists = {code: list_stop_words(code) for code in _places()}
    shared = Counter(word for words in lists.values() for word in words)
    shared.update(word for word in load_stop_words()["en ambiguous"] if word not in FUNCTION_WORDS)
    clues: dict[str, int] = {}
    for code, words in lists.items():
        # Single letters are mostly those of formulas and code.
        for word in filter(_is_clue, words):
            clues[word] = clues.get(word, 0) + (_EXCLUSIVE_CLUE // shared[word] << _places()[code])
    return clues


def _is_clue(word: str) -> bool:
    return len(word) > 1


@lru_cache(maxsize=1)
def _exclusive_words() -> tuple[frozenset[str], frozenset[str]]:
    """Return the function words of English alone, and those of one other language alone."""
    english, mask = _places()["en"], (1 << _CLUE_BITS) - 1
    alone = {
        word: clues
        for word, clues in _clues_by_word().items()
        if max(score for score, _ in _scores(clues)) == _EXCLUSIVE_CLUE
    }
    exclusive = frozenset(word for word, clues in alone.items() if clues >> english & mask)
    return exclusive, frozenset(alone.keys() - exclusive)


def _detect_by_clues(words: Sequence[str], text: str = "") -> str:
    found = _known_words().intersection(words)
    if len(found) < _MIN_CLUE_WORDS and not text:
        return ""
    clues = sum(map(_clues_by_word().__getitem__, found))
    if text:
        clues += sum(map(_letter_clues, set(_OTHER_LETTER.findall(text))))
    return _decide(clues)


@lru_cache(maxsize=1)
def _known_words() -> frozenset[str]:
    return frozenset(_clues_by_word())


@lru_cache(maxsize=512)
def _letter_clues(letter: str) -> int:
    return sum(_LETTER_CLUE << _places()[code] for code, letters in _LETTERS_OF.items() if letter.lower() in letters)


@lru_cache(maxsize=1 << 12)
def _decide(clues: int) -> str:
    """Return the language with clearly more clues than any other, and with enough of them."""
    ranked = sorted(_scores(clues), reverse=True)
    best, code = ranked[0]
    # Danish and Norwegian share most function words, and are stemmed alike.
    second = max(score for score, other in ranked[1:] if {code, other} != {"da", "no"})
    return code if best >= _MIN_CLUES and best >= _MIN_LEAD * second else ""


def _scores(clues: int) -> Iterator[tuple[int, str]]:
    for code, place in _places().items():
        yield clues >> place & ((1 << _CLUE_BITS) - 1), code
