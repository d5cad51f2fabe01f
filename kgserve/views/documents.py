"""Texts as documents of tantivy: their fields, and how they become terms."""

from __future__ import annotations

from collections.abc import Iterator

import tantivy

from kgserve.views.text import Text

ANALYZER = "text"
# Tags are words of the summary: each field costs every entity a byte, and each search a look-up for each word.
TEXT_FIELDS = ("content", "name", "summary")
_LONGEST_TOKEN = 100
_TIMES = ("since", "until", "valid_from", "valid_to", "freshness_at")


def document(entity: Text) -> tantivy.Document:
    """A text as tantivy takes it."""
    made = tantivy.Document()
    made.add_text("id", entity.key)
    made.add_text("key", key_of(entity.id))
    made.add_text("name", entity.id)
    made.add_text("type", entity.type)
    made.add_text("content", entity.content)
    if entity.summary:
        made.add_text("summary", entity.summary)
    for tag in entity.tags:
        made.add_text("summary", tag)
        made.add_text("key", key_of_tag(tag))
    for field, value in _times(entity):
        if value is not None:
            made.add_integer(field, value)
    return made


def _times(entity: Text) -> Iterator[tuple[str, int | None]]:
    yield "since", entity.since
    yield "until", entity.until
    if entity.marks is not None:
        yield "valid_from", entity.marks.valid_from
        yield "valid_to", entity.marks.valid_to
        yield "freshness_at", entity.marks.freshness_at


def key_of(node_id: str) -> str:
    """An id in letters that mean nothing to the query language, in the same order as the ids."""
    return "x" + node_id.encode().hex()


def key_of_tag(tag: str) -> str:
    """A tag among the keys, where no id can be taken for it."""
    return "t" + tag.encode().hex()


def after(prefix: str) -> str:
    """The first key behind all that start with a prefix that is not empty."""
    encoded = prefix.encode()
    return "x" + encoded[:-1].hex() + f"{encoded[-1] + 1:02x}"


def analyzer() -> tantivy.TextAnalyzer:
    """How texts and queries become terms."""
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (
        tantivy.Filter.remove_long(_LONGEST_TOKEN),
        tantivy.Filter.lowercase(),
        tantivy.Filter.ascii_fold(),
        tantivy.Filter.stemmer("english"),
    ):
        builder = builder.filter(step)
    return builder.build()


def schema() -> tantivy.Schema:
    """The fields of a document. Times are there only where something has them."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("type", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("name", tokenizer_name=ANALYZER, index_option="freq")
    builder.add_text_field("content", tokenizer_name=ANALYZER, index_option="position")
    builder.add_text_field("summary", tokenizer_name=ANALYZER, index_option="position")
    for name in _TIMES:
        builder.add_integer_field(name, fast=True)
    return builder.build()
