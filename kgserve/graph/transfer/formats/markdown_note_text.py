"""Text of a Markdown note: front matter, links, embeds and tags, as Obsidian reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

import yaml
from typing_extensions import override

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_WIKI_LINK = re.compile(
    r"(?P<embed>!?)\[\[(?P<target>[^\[\]\n|#]*)(?:#(?P<heading>[^\[\]\n|]*))?(?:\|(?P<alias>[^\[\]\n]*))?\]\]"
)
_MARKDOWN_LINK = re.compile(
    r"(?P<embed>!?)\[(?P<alias>[^\[\]\n]*)\]\((?:<(?P<quoted>[^<>\n]+)>|(?P<target>[^()<>\s]+))(?:\s+\"[^\"\n]*\")?\)"
)
_URL_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_INLINE_TAG = re.compile(r"(?<!\S)#(?P<tag>[\w/-]*[^\W\d][\w/-]*)")
_CODE_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})")
_INLINE_CODE = re.compile(r"(?<!`)(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)")
_TAG_SEPARATORS = re.compile(r"[,\s]+")
MAX_YAML_DEPTH = 100


class NoteLink(NamedTuple):
    """Link or embed in a note: its line in the file, and what it names.

    ``is_path`` marks a Markdown link, whose target is a path relative to the note.
    """

    line: int
    target: str
    heading: str
    alias: str
    is_embed: bool
    is_path: bool = False


class InvalidFrontMatter(ValueError):
    """Front matter that is not a YAML mapping; ``line`` is the line in the file."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


_TEXT_TAG = "tag:yaml.org,2002:str"


class _PropertyLoader(yaml.CSafeLoader):
    """Loader of YAML 1.2's core types, as Obsidian uses: dates, ``yes`` and ``12:30`` are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are as written. Raises ConstructorError for a key that occurs twice."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} occurs twice", key.start_mark)
            seen.add(key.value)
            key.tag = _TEXT_TAG
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> float | str:
        """Return a float, also one without a point, such as ``1e5``; a number too large for JSON stays text."""
        text = self.construct_scalar(node)
        number = float(text)
        return number if math.isfinite(number) else text


class _PropertyDumper(yaml.CSafeDumper):
    """Dumper that quotes every text that either version of YAML takes for something else."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True  # the loader refuses aliases


for _tag, _pattern, _first in (
    ("null", r"(?:null|Null|NULL|~|)\Z", ["n", "N", "~", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)\Z", list("tTfF")),
    ("int", r"-?(?:0|[1-9][0-9]*)\Z", list("-0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z", list("-+.0123456789")),
):
    for _class in (_PropertyLoader, _PropertyDumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
_PropertyLoader.add_constructor("tag:yaml.org,2002:float", _PropertyLoader.construct_number)


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the front matter of a note, with its delimiters, and the text after it."""
    found = _FRONT_MATTER.match(text)
    return (found[0], text[found.end() :]) if found else ("", text)


def parse_note_properties(head: str) -> dict[str, Any]:
    """Return the properties in front matter. Raises InvalidFrontMatter."""
    found = _FRONT_MATTER.match(head)
    if found is None:
        return {}
    try:
        fault = _find_refused_yaml(found["yaml"])
        properties = None if fault else yaml.load(found["yaml"], _PropertyLoader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 2
        raise InvalidFrontMatter(line, f"the front matter is not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidFrontMatter(1, f"the front matter is not YAML: {error}") from None
    if fault is not None:
        raise fault
    if properties is None:
        return {}
    if not isinstance(properties, dict):
        raise InvalidFrontMatter(1, "the front matter must be properties such as `status: open`")
    return {str(name): value for name, value in properties.items()}


def _find_refused_yaml(text: str) -> InvalidFrontMatter | None:
    """Return an error for YAML aliases, which can stand for gigabytes, and for deep nesting."""
    if "*" not in text and text.count("[") + text.count("{") + text.count("- ") < MAX_YAML_DEPTH:
        return None
    depth = 0
    for event in yaml.parse(text, _PropertyLoader):
        line = event.start_mark.line + 2
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            return InvalidFrontMatter(line, "YAML aliases are not supported; write the value again")
        if depth > MAX_YAML_DEPTH:
            return InvalidFrontMatter(line, f"the front matter is nested more than {MAX_YAML_DEPTH} levels deep")
    return None


def format_front_matter(properties: dict[str, Any]) -> str:
    """Return properties as front matter, with its delimiters."""
    text = yaml.dump(properties, Dumper=_PropertyDumper, allow_unicode=True, sort_keys=False, width=1 << 20)
    return f"---\n{text}---\n"


def get_property_tags(value: Any) -> list[str]:
    """Return the tags in the value of the property ``tags``: a list, or a text with commas or blanks.

    Empty items of a list are no tags; numbers are.
    """
    if isinstance(value, str):
        value = _TAG_SEPARATORS.split(value)
    items = value if isinstance(value, list) else [value]
    texts = [str(item).removeprefix("#") for item in items if isinstance(item, str | int | float)]
    return [text for text in texts if text.strip("# ")]


def find_wiki_links(text: str, line: int) -> list[NoteLink]:
    """Return the wiki links in a text of one line."""
    return [
        NoteLink(
            line,
            found["target"].rstrip("\\").strip(),
            (found["heading"] or "").rstrip("\\").strip(),
            (found["alias"] or "").strip(),
            bool(found["embed"]),
        )
        for found in _WIKI_LINK.finditer(text)
    ]


def find_note_links_and_tags(body: str, first_line: int) -> tuple[list[NoteLink], list[str]]:
    """Return the links, embeds and tags of a text that begins at ``first_line`` of its file. Code has none."""
    links: list[NoteLink] = []
    tags: dict[str, None] = {}
    for number, line in _lines_outside_code(body, first_line):
        if "[" in line:
            links += find_wiki_links(line, number)
            links += _find_markdown_links(line, number)
        if "#" in line:
            tags.update(dict.fromkeys(found["tag"] for found in _INLINE_TAG.finditer(line)))
    return links, list(tags)


def _lines_outside_code(body: str, first_line: int) -> Iterator[tuple[int, str]]:
    fence = ""
    for number, line in enumerate(body.split("\n"), first_line):
        mark = _CODE_FENCE.match(line)
        if fence:
            if mark and mark["fence"].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif mark:
            fence = mark["fence"]
        else:
            yield number, _INLINE_CODE.sub("", line) if "`" in line else line


def _find_markdown_links(line: str, number: int) -> Iterator[NoteLink]:
    if "](" not in line:
        return
    for found in _MARKDOWN_LINK.finditer(line):
        address = found["quoted"] or found["target"]
        if not _URL_SCHEME.match(address):
            target, _, heading = unquote(address).partition("#")
            yield NoteLink(number, target, heading, found["alias"].strip(), bool(found["embed"]), is_path=True)
