"""Rendering of statements as Cypher text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tests.cypher.reference import tree as t
from tests.cypher.reference.values import Timestamp

_WORD = re.compile(r"[^\W\d]\w*")
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}
_LEVELS = (
    ("OR",),
    ("XOR",),
    ("AND",),
    ("NOT",),
    ("=", "<>", "<", "<=", ">", ">="),
    ("STARTS WITH", "ENDS WITH", "CONTAINS", "IN", "=~", "IS NULL"),
    ("+", "-"),
    ("*", "/", "%"),
    ("^",),
    ("sign",),
)
LEVEL = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}
ATOM = len(_LEVELS)
COMPARISONS = _LEVELS[4]


def render(statement: t.Statement) -> str:
    """Return the text of a statement."""
    if isinstance(statement, t.Union):
        return (" UNION ALL " if statement.is_all else " UNION ").join(map(render, statement.queries))
    return " ".join(map(_clause, statement.clauses))


def literal(value: Any) -> str:
    """Return the spelling of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _float(value)
        case str():
            return quoted(value)
        case Timestamp():
            return f"timestamp('{value}')"
        case _:
            return str(value)


def _float(value: float) -> str:
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{mantissa}e{exponent.replace('+', '')}" if exponent else mantissa


def quoted(text: str) -> str:
    """Return a text in single quotes with escapes."""
    return "'" + "".join(_ESCAPES.get(each, each) for each in text) + "'"


def name(text: str) -> str:
    """Return a name, in backticks if needed."""
    return text if _WORD.fullmatch(text) else "`" + text.replace("`", "``") + "`"


def expression(value: t.Expression, level: int = 0) -> str:
    """Return the text of an expression, in parentheses if it binds less tightly than `level`."""
    text, own = _written(value)
    return f"({text})" if own < level else text


def _written(value: t.Expression) -> tuple[str, int]:
    match value:
        case t.Literal():
            text = value.text or literal(value.value)
            return text, LEVEL["sign"] if text.startswith("-") else ATOM
        case t.Unary():
            own = LEVEL["NOT" if value.operator == "NOT" else "sign"]
            operand = expression(value.operand, own if value.operator == "NOT" else ATOM)
            return f"{value.operator}{' ' if own < LEVEL['sign'] else ''}{operand}", own
        case t.Binary():
            own = LEVEL[value.operator]
            is_chainable = value.operator not in COMPARISONS
            left = expression(value.left, own if is_chainable else own + 1)
            return f"{left} {value.operator} {expression(value.right, own + 1)}", own
        case t.Chain():
            own = LEVEL["="]
            rest = "".join(f" {operator} {expression(each, own + 1)}" for operator, each in value.rest)
            return expression(value.first, own + 1) + rest, own
        case t.NullTest():
            own = LEVEL["IS NULL"]
            return f"{expression(value.operand, own)} IS {'NOT ' if value.is_negated else ''}NULL", own
        case _:
            return _atom(value), ATOM


def _atom(value: t.Expression) -> str:  # noqa: PLR0911 - one line for each kind
    match value:
        case t.Parameter():
            return f"${value.name}"
        case t.Variable():
            return name(value.name)
        case t.Property():
            return f"{_subject(value.subject)}.{name(value.name)}"
        case t.Index():
            return f"{_subject(value.subject)}[{expression(value.index)}]"
        case t.Slice():
            ends = (expression(end) if end is not None else "" for end in (value.start, value.end))
            return f"{_subject(value.subject)}[{'..'.join(ends)}]"
        case t.ListOf():
            return f"[{_comma(value.items)}]"
        case t.MapOf():
            return _entries(value.entries)
        case _:
            return _called(value)


def _called(value: t.Expression) -> str:  # noqa: PLR0911 - one line for each kind
    match value:
        case t.Call():
            return f"{value.name}({'DISTINCT ' if value.is_distinct else ''}{_comma(value.arguments)})"
        case t.CountRows():
            return "count(*)"
        case t.Cast():
            return f"CAST({expression(value.operand)} AS {value.type})"
        case t.Lambda():
            return f"{name(value.name)} -> {expression(value.body)}"
        case t.Case():
            return _case(value)
        case t.Comprehension():
            where = f" WHERE {expression(value.condition)}" if value.condition is not None else ""
            result = f" | {expression(value.result)}" if value.result is not None else ""
            return f"[{name(value.name)} IN {expression(value.source)}{where}{result}]"
        case t.Quantifier():
            where = f"WHERE {expression(value.condition)}"
            return f"{value.kind}({name(value.name)} IN {expression(value.source)} {where})"
        case t.PatternCount():
            return _pattern_count(value)
        case _:
            return _of_graph(value)


def _of_graph(value: t.Expression) -> str:
    match value:
        case t.PatternComprehension():
            where = f" WHERE {expression(value.where)}" if value.where is not None else ""
            return f"[{path_pattern(value.pattern)}{where} | {expression(value.result)}]"
        case t.LabelTest():
            return f"({_subject(value.subject)}:{'|'.join(map(name, value.labels))})"
        case t.MapProjection():
            return f"{name(value.name)} {{{', '.join(_projected(*entry) for entry in value.entries)}}}"
        case t.Reduce():
            source = f"{name(value.name)} IN {expression(value.source)}"
            return f"reduce({name(value.total)} = {expression(value.initial)}, {source} | {expression(value.body)})"
        case _:
            raise TypeError(value)


def _projected(key: str, value: t.Expression | None) -> str:
    if value is None:
        return ".*" if key == "*" else f".{name(key)}"
    return f"{name(key)}: {expression(value)}"


def _subject(value: t.Expression) -> str:
    """Return the subject of a bracket or dot; numbers and lambdas need parentheses."""
    text = expression(value, ATOM)
    is_bare_number = isinstance(value, t.Literal) and not isinstance(value.value, (str, bool))
    return f"({text})" if is_bare_number or isinstance(value, (t.MapOf, t.Lambda)) else text


def _case(value: t.Case) -> str:
    subject = f" {expression(value.subject)}" if value.subject is not None else ""
    branches = "".join(f" WHEN {expression(when)} THEN {expression(then)}" for when, then in value.branches)
    default = f" ELSE {expression(value.default)}" if value.default is not None else ""
    return f"CASE{subject}{branches}{default} END"


def _pattern_count(value: t.PatternCount) -> str:
    pattern = path_pattern(value.pattern)
    match value.form:
        case "size":
            return f"size({pattern})"
        case "pattern":
            return pattern
        case _:
            where = f" WHERE {expression(value.where)}" if value.where is not None else ""
            return f"{value.form} {{ MATCH {pattern}{where} }}"


def _comma(values: Iterable[t.Expression]) -> str:
    return ", ".join(map(expression, values))


def _entries(entries: tuple[tuple[str, t.Expression], ...]) -> str:
    return "{" + ", ".join(f"{name(key)}: {expression(value)}" for key, value in entries) + "}"


def path_pattern(pattern: t.PathPattern) -> str:
    """Return the text of a path of a pattern."""
    written = "".join(
        _node(each) if isinstance(each, t.NodePattern) else _relationship(each) for each in pattern.elements
    )
    return f"{name(pattern.name)} = {written}" if pattern.name else written


def _node(node: t.NodePattern) -> str:
    labels = "".join(f":{name(label)}" for label in node.labels)
    if node.is_any and node.labels:
        labels = ":" + "|".join(map(name, node.labels))
    within = f"{name(node.name) if node.name else ''}{labels}"
    return f"({within}{' ' if within and node.entries else ''}{_entries(node.entries) if node.entries else ''})"


def _relationship(each: t.RelationshipPattern) -> str:
    types = ":" + "|".join(map(name, each.types)) if each.types else ""
    lengths = "" if each.lengths is None else "*" + "..".join("" if n is None else str(n) for n in each.lengths)
    entries = f" {_entries(each.entries)}" if each.entries else ""
    within = f"{name(each.name) if each.name else ''}{types}{lengths}{entries}"
    left, right = {"->": ("-", "->"), "<-": ("<-", "-"), "-": ("-", "-")}[each.direction]
    return f"{left}[{within}]{right}"


def _clause(clause: t.Clause) -> str:
    match clause:
        case t.Match():
            where = f" WHERE {expression(clause.where)}" if clause.where is not None else ""
            keyword = "OPTIONAL MATCH" if clause.is_optional else "MATCH"
            return f"{keyword} {', '.join(map(path_pattern, clause.patterns))}{where}"
        case t.Unwind():
            return f"UNWIND {expression(clause.source)} AS {name(clause.name)}"
        case t.Projection():
            return _projection(clause)
        case _:
            return _writing(clause)


def _writing(clause: t.Clause) -> str:
    match clause:
        case t.SetProperties():
            return f"SET {_changes(clause.assignments)}"
        case t.Remove():
            targets = (_atom(e) if isinstance(e, t.Property) else _change(e) for e in clause.targets)
            return f"REMOVE {', '.join(targets)}"
        case t.Create():
            return f"CREATE {', '.join(map(path_pattern, clause.patterns))}"
        case t.Merge():
            created = f" ON CREATE SET {_changes(clause.on_create)}" if clause.on_create else ""
            matched = f" ON MATCH SET {_changes(clause.on_match)}" if clause.on_match else ""
            return f"MERGE {path_pattern(clause.pattern)}{created}{matched}"
        case t.Delete():
            return f"{'DETACH ' * clause.is_detaching}DELETE {', '.join(map(name, clause.names))}"
        case _:
            raise TypeError(clause)


def _changes(changes: Iterable[t.Change]) -> str:
    return ", ".join(map(_change, changes))


def _change(change: t.Change) -> str:
    match change:
        case t.Assignment():
            return f"{_atom(change.target)} = {expression(change.value)}"
        case t.MapAssignment():
            return f"{name(change.name)} {'+=' if change.keeps_others else '='} {expression(change.value)}"
        case t.LabelChange():
            return f"{name(change.name)}:{name(change.label)}"


def _projection(clause: t.Projection) -> str:
    items = [f"{expression(i.expression)}{f' AS {name(i.alias)}' if i.alias else ''}" for i in clause.items]
    shown = ", ".join(["*"] * clause.is_all + items)
    order = ", ".join(f"{expression(key.expression)}{' DESC' if key.is_descending else ''}" for key in clause.order)
    parts = [
        f"{clause.keyword}{' DISTINCT' if clause.is_distinct else ''} {shown}",
        f"ORDER BY {order}" if order else "",
        f"SKIP {expression(clause.skip)}" if clause.skip is not None else "",
        f"LIMIT {expression(clause.limit)}" if clause.limit is not None else "",
        f"WHERE {expression(clause.where)}" if clause.where is not None else "",
    ]
    return " ".join(part for part in parts if part)
