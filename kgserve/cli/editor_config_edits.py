"""Edits of an editor's configuration file that change one MCP server and leave the rest of the text as it is.

JSON files may have comments and trailing commas, as editors accept them. Each edit is checked: the edited text must
parse to the old document with this one server changed, or the edit is refused.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kgserve.errors import InvalidInput

_JSONC_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?>\s+|//[^\n]*+|/\*.*?\*/)*+[}\]])', re.DOTALL)
"""A string, a comment or a trailing comma of JSON as editors accept it."""
_LINE_END = re.compile(r"[ \t]*(\n|\Z)")
_TOML_HEADER = re.compile(r"^[ \t]*(\[[^\[\n][^\n]*\])[ \t]*(?:#[^\n]*)?$", re.MULTILINE)
_TOML_BLANK_LINES = re.compile(r"(?:^[ \t]*(?:#[^\n]*)?\n)*\Z", re.MULTILINE)
_TRANSPORT_FIELDS = frozenset({"type", "command", "args", "url", "serverUrl", "httpUrl", "headers"})
"""Fields that say how a server is reached. Those of an old entry are replaced; its other fields are kept."""

ServerEntry = Mapping[str, Any]
_Edit = Callable[[str], str]


class _JsonMember(NamedTuple):
    """Position of a member of a JSON object."""

    key: str
    start: int
    value_start: int
    end: int


def set_server_entry(text: str, root: str, name: str, entry: ServerEntry, *, toml: bool = False) -> str:
    """Return a configuration with an MCP server added or updated; an updated one keeps fields of the user's.

    Raises InvalidInput for a text that cannot be parsed or edited.
    """
    document = _parse(text, toml=toml)
    old = _servers(document, root).get(name)
    merged = _merge_entry(old, entry) if isinstance(old, dict) else dict(entry)
    if merged == old:
        return text
    wanted = copy.deepcopy(document)
    wanted.setdefault(root, {})[name] = merged
    edits: _Edit = (
        (lambda given: _put_toml_table(given, (root, name), merged))
        if toml
        else (lambda given: _put_json_entry(given, root, name, old, merged))
    )
    return _apply_checked(edits, text, wanted, toml=toml)


def remove_server_entry(text: str, root: str, name: str, *, toml: bool = False) -> str:
    """Return a configuration without an MCP server. Raises InvalidInput for a text that cannot be parsed or edited."""
    document = _parse(text, toml=toml)
    if name not in _servers(document, root):
        return text
    wanted = copy.deepcopy(document)
    del wanted[root][name]
    if toml and not wanted[root] and not re.search(rf"^[ \t]*\[\s*{re.escape(root)}\s*\]", text, re.MULTILINE):
        del wanted[root]
    edits: _Edit = (
        (lambda given: _remove_toml_table(given, (root, name))[0])
        if toml
        else (lambda given: _remove_json_member(given, [root, name]))
    )
    return _apply_checked(edits, text, wanted, toml=toml)


def render_toml_table(path: tuple[str, ...], entry: ServerEntry) -> str:
    """Return a TOML table and its subtables."""
    plain = {name: value for name, value in entry.items() if not isinstance(value, dict)}
    header = ".".join(map(_toml_key, path))
    lines = [f"[{header}]", *(f"{_toml_key(name)} = {_toml_value(value)}" for name, value in plain.items())]
    below = [render_toml_table((*path, name), value) for name, value in entry.items() if isinstance(value, dict)]
    return "\n\n".join(["\n".join(lines), *below])


def _merge_entry(old: dict[str, Any], entry: ServerEntry) -> dict[str, Any]:
    kept = {name: value for name, value in old.items() if name not in _TRANSPORT_FIELDS}
    variables = old.get("env")
    environment = {**(variables if isinstance(variables, dict) else {}), **entry.get("env", {})}
    return {**entry, **kept, **({"env": environment} if environment else {})}


def _apply_checked(edit: _Edit, text: str, wanted: dict[str, Any], *, toml: bool) -> str:
    """Return the edited text with the line ends of the old one. Raises InvalidInput if it means something else."""
    try:
        edited = edit(text.replace("\r\n", "\n"))
        is_as_wanted = _parse(edited, toml=toml) == wanted
    except (ValueError, InvalidInput):
        edited, is_as_wanted = text, False
    if not is_as_wanted:
        raise InvalidInput("its servers are written in a form that cannot be edited safely; edit the file by hand")
    return edited.replace("\n", "\r\n") if "\r\n" in text else edited


def _parse(text: str, *, toml: bool) -> dict[str, Any]:
    """Return the document of a configuration. Raises InvalidInput, with line and column."""
    plain = text.removeprefix("\ufeff")
    try:
        document: Any = tomllib.loads(plain) if toml else json.loads(_blank_comments(plain) or "{}")
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"it is not valid {'TOML' if toml else 'JSON'}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidInput("it must contain a JSON object")
    return document


def _servers(document: dict[str, Any], root: str) -> dict[str, Any]:
    found = document.get(root, {})
    if not isinstance(found, dict):
        raise InvalidInput(f"its field {root!r} must be an object")
    return found


# --- JSON ------------------------------------------------------------------------------------------------------------


def _blank_comments(text: str) -> str:
    """Return JSON without comments and trailing commas, each character at its old position; "" if nothing is left."""
    plain = _JSONC_TOKEN.sub(lambda found: found[0] if found[0][0] == '"' else re.sub(r"[^\n]", " ", found[0]), text)
    return plain if plain.strip() else ""


def _put_json_entry(text: str, root: str, name: str, old: Any, entry: ServerEntry) -> str:
    if not isinstance(old, dict):
        return _put_json_value(text, [root, name], entry)
    for field in old.keys() - entry.keys():
        text = _remove_json_member(text, [root, name, field])
    for field, value in entry.items():
        if field not in old or old[field] != value:
            text = _put_json_value(text, [root, name, field], value)
    return text


def _put_json_value(text: str, path: list[str], value: Any) -> str:
    """Set the value at a path of keys, with objects on the way created."""
    if not _blank_comments(text.removeprefix("\ufeff")):
        text = f"{text.rstrip()}\n{{}}\n".lstrip("\n")
    plain = _blank_comments(text)
    start = plain.index("{")
    for depth, key in enumerate(path):
        member = _find_json_member(plain, start, key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert_json_member(text, start, key, value)
        if depth < len(path) - 1:
            start = member.value_start
        else:
            rendered = _render_json(value, *_json_indents(text, start))
            text = text[: member.value_start] + rendered + text[member.end :]
    return text


def _remove_json_member(text: str, path: list[str]) -> str:
    """Remove the member at a path of keys, with its comma, and its line if nothing else is on it."""
    plain = _blank_comments(text)
    start = plain.index("{")
    for key in path[:-1]:
        member = _find_json_member(plain, start, key)
        start = member.value_start if member else start
    members, close = _json_members(plain, start)
    position = max(index for index, each in enumerate(members) if each.key == path[-1])
    begin, end = members[position].start, members[position].end
    comma = _skip_space(plain if plain[_skip_space(plain, end)] == "," else text, end)
    followed = text[comma] == ","
    end = comma + 1 if followed else end
    before = len(text[:begin].rstrip(" \t"))
    if _LINE_END.match(text, end) and text[:before].endswith("\n"):
        begin, end = before - 1, _skip_space(text, end, " \t")
    if not (text[start + 1 : begin] + text[end:close]).strip():
        return text[: start + 1] + text[close:]
    if not followed and position:
        last_comma = plain.index(",", members[position - 1].end)
        return text[:last_comma] + text[last_comma + 1 : begin] + text[end:]
    return text[:begin] + text[end:]


def _find_json_member(plain: str, start: int, key: str) -> _JsonMember | None:
    """Return a member of the object that begins at ``start``: of several with this key the last, which counts."""
    return next((each for each in reversed(_json_members(plain, start)[0]) if each.key == key), None)


def _json_members(plain: str, start: int) -> tuple[list[_JsonMember], int]:
    """Return the members of the object that begins at ``start``, and the position of its closing brace."""
    decoder, members, position = json.JSONDecoder(), list[_JsonMember](), start + 1
    while plain[position := _skip_space(plain, position)] != "}":
        if plain[position] == ",":
            position = _skip_space(plain, position + 1)
        begin = position
        key, position = decoder.raw_decode(plain, begin)
        value_start = _skip_space(plain, _skip_space(plain, position) + 1)
        position = decoder.raw_decode(plain, value_start)[1]
        members.append(_JsonMember(key, begin, value_start, position))
    return members, position


def _skip_space(text: str, position: int, space: str = " \t\r\n") -> int:
    while text[position : position + 1] and text[position] in space:
        position += 1
    return position


def _insert_json_member(text: str, start: int, key: str, value: Any) -> str:
    """Insert a member at the end of an object, after the comments that follow its last member."""
    members, close = _json_members(_blank_comments(text), start)
    indent, unit = _json_indents(text, start)
    member = f"\n{indent}{json.dumps(key, ensure_ascii=False)}: {_render_json(value, indent, unit)}"
    head = text[:close].rstrip()
    gap = text[len(head) : close] if "\n" in text[len(head) : close] else f"\n{indent.removesuffix(unit)}"
    if members:
        last = members[-1].end
        after = _JSONC_TOKEN.sub(lambda found: found[0] if found[0][0] == "," else "", head[last:] + "}")
        if "," in after:
            member += ","
        else:
            head = f"{head[:last]},{head[last:]}"
    return f"{head}{member}{gap}{text[close:]}"


def _json_indents(text: str, start: int) -> tuple[str, str]:
    """Return the indentation of the members of an object, and what one level adds."""
    members, _ = _json_members(_blank_comments(text), start)
    outer = _line_indent(text, start)
    inner = _line_indent(text, members[0].start) if members and "\n" in text[start : members[0].start] else ""
    if inner.startswith(outer) and inner != outer:
        return inner, inner.removeprefix(outer)
    tab = re.search(r"^(\t| +)\S", text, re.MULTILINE)
    unit = "\t" if tab and tab[1] == "\t" else tab[1] if tab and len(tab[1]) in {2, 4} else "  "
    return outer + unit, unit


def _line_indent(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _render_json(value: Any, indent: str, unit: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{indent}")


# --- TOML ------------------------------------------------------------------------------------------------------------


def _put_toml_table(text: str, path: tuple[str, ...], entry: ServerEntry) -> str:
    rest, position = _remove_toml_table(text, path)
    head, tail = rest[:position].rstrip("\n"), rest[position:].lstrip("\n")
    return "\n\n".join(part for part in (head, render_toml_table(path, entry), tail.rstrip("\n")) if part) + "\n"


def _remove_toml_table(text: str, path: tuple[str, ...]) -> tuple[str, int]:
    """Return the text without a table and its subtables, and where the table was, or else the text's end."""
    headers = list(_TOML_HEADER.finditer(text))
    ends = [*(each.start() for each in headers[1:]), len(text)]
    spans = [
        (header.start(), end)
        for header, end in zip(headers, ends, strict=False)
        if _toml_path(header[1])[: len(path)] == path
    ]
    position = spans[0][0] if spans else len(text)
    for begin, end in reversed(spans):
        comments = _TOML_BLANK_LINES.search(text, begin, end) if end < len(text) else None
        text = text[:begin] + text[comments.start() if comments else end :].lstrip("\n")
    return (f"{text.rstrip()}\n" if text.strip() else ""), position


def _toml_path(header: str) -> tuple[str, ...]:
    try:
        document: dict[str, Any] = tomllib.loads(header)
    except tomllib.TOMLDecodeError:
        return ()
    path = list[str]()
    while document:
        ((key, document),) = document.items()
        path.append(key)
    return tuple(path)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _toml_value(value: Any) -> str:
    """Return a TOML value. Strings, numbers and arrays of them have the syntax of JSON; the check refuses others."""
    return json.dumps(value, ensure_ascii=False, default=str)
