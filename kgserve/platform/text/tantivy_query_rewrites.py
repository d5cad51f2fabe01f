"""Analysis of the words in a query of tantivy's language, which leaves its operators and fields as they are."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from kgserve.platform.text.analyzer import extract_index_terms

_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<field>[A-Za-z_]\w*:)
    |(?P<range>[\[{][^\]}]*[\]}])
    |(?P<regex>/(?:[^/\\]|\\.)*/)
    |(?P<operator>(?:AND|OR|NOT|IN)(?![^\s()]))
    |(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<control>[()+\-^~*<>=]+[\d.]*)
    |(?P<word>(?:[^\s()"'^~*\\:\[\]{}<>=]|'(?=\w))+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def replace_tantivy_query_words_by_terms(query: str, languages: Sequence[str], fields: Collection[str]) -> str:
    """Return a query with its words and phrases in quotation marks replaced by index terms.

    A word with other terms in several languages becomes a disjunction, a word with several terms a phrase. ``fields``
    are the names of fields with analysed text; values of other fields stay as they are.
    """
    rewritten: list[str] = []
    analyzed = True
    for match in _TOKEN.finditer(query):
        kind, text = match.lastgroup, match[0]
        if kind == "field":
            analyzed = text[:-1] in fields
        elif kind == "word" and analyzed:
            sign = text[0] if text[0] in "+-" else ""
            text = sign + _terms_of(text[len(sign) :], languages, quote=False)
        elif kind == "quoted" and analyzed and len(text) > len('""'):
            text = _terms_of(text[1:-1], languages, quote=True)
        rewritten.append(text)
        if kind in {"word", "quoted", "range", "regex"}:
            analyzed = True
    return "".join(rewritten)


def _terms_of(text: str, languages: Sequence[str], *, quote: bool) -> str:
    """Return some words as analysed in each language."""
    found: dict[str, None] = {}
    for language in languages or ("en",):
        # Further forms of the words come last, and would not be next to them in a text.
        terms = extract_index_terms(text, language, further=False)
        if not terms:
            return f'"{text}"' if quote else text
        escaped = " ".join(re.sub(r'(["\\])', r"\\\1", term) for term in terms)
        found[f'"{escaped}"' if quote or len(terms) > 1 or not terms[0].isalnum() else escaped] = None
    return next(iter(found)) if len(found) == 1 else f"({' OR '.join(found)})"
