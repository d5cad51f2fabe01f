"""Languages whose words are stemmed, and the language setting of stores."""

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
