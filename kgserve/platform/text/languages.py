"""Languages of texts: which ones are stemmed, and detection by script and stop words."""

from __future__ import annotations

from typing import Literal, get_args

Language = Literal[
    "ar", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "ta", "tr"
]
"""ISO 639-1 codes of the languages whose words are stemmed."""
LanguageSetting = Literal[
    "auto",
    "ar", "da", "de", "el", "en", "es", "fi", "fr", "hu", "it", "nl", "no", "pt", "ro", "ru", "sv", "ta", "tr",
]  # fmt: skip
"""Language of a store: ``auto`` detects that of each text."""
LANGUAGES: tuple[Language, ...] = get_args(Language)


def detect_language(text: str) -> str:  # noqa: ARG001
    """Return the ISO 639-1 code of a text's language, which may have no stemmer; "" if it cannot be told."""
    return ""
