"""Texts in XML 1.0, which has no form at all for most control characters, nor for U+FFFE and U+FFFF.

They are written as ECMA-376 does in spreadsheets: ``_x000B_``; an underscore that would begin one is ``_x005F_``.
"""

from __future__ import annotations

import re

_FORBIDDEN = re.compile("_(?=x[0-9A-Fa-f]{4})|[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")
# A parser turns CR and CRLF into LF, and in attributes every blank into a space, unless they are written as numbers.
_MARKUP = re.compile('[&<>"\t\n\r]')
_REFERENCES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}


def xml_text(text: str) -> str:
    """Any text, for an element or an attribute."""
    return _MARKUP.sub(lambda found: _REFERENCES[found[0]], _FORBIDDEN.sub(_number, text))


def original(text: str) -> str:
    """The inverse of the escaping that XML does not undo by itself."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _number(found: re.Match[str]) -> str:
    return f"_x{ord(found[0]):04X}_"
