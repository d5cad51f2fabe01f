"""Writes the clients' descriptions of the use cases, and their methods, from the table of operations."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from textwrap import indent
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from kgserve.api.operation import UseCase
from kgserve.api.table import USE_CASES
from kgserve.graph import requests
from kgserve.storage.model import walk
from scripts.pages import TOP

OPERATIONS = TOP / "kgserve/client/operations.py"
METHODS = TOP / "kgserve/client/methods.py"
STREAMS = {
    each.name: ast.unparse(each.returns)
    for each in ast.parse((TOP / "kgserve/client/streams.py").read_text()).body
    if isinstance(each, ast.FunctionDef) and each.returns is not None
}
"""What is written by hand, with what each function makes; read, for importing it needs what is written here."""
BY_HAND = ("create", "update_settings", "nodes", "put_node", "search_batch")
"""Use cases whose methods take more than a request's fields; `kgserve.client.streams` has them."""
RICHER = {"TraverseAnswer": "Traversal", "SearchAnswer": "Hits"}
"""Answers that the client knows more to do with."""
MOMENTS = {"as_of", "until", "before"}
"""Texts that may be sequences."""
ALIAS_MODULES = {"Direction": walk, "SearchMode": requests, "Fusion": requests}
ALIASES: Mapping[str, Any] = {name: getattr(module, name) for name, module in ALIAS_MODULES.items()}

MOST_PARAMETERS = 8
"""What ruff lets pass, and the star."""

OF_CLUSTERS = ("cluster", "drain", "finish_upgrade")
OF_SERVER = ("health", "ready", "whoami", "audit", *OF_CLUSTERS, "cypher_words", "browser_key", "openapi")
OF_STORES = ("stores", "create", "drop", "backup_stores", "restore_backup", "events")

HEAD = '''"""{what}

Written by `make docs` from `kgserve.api.table`: a change here is lost.
"""

from __future__ import annotations

'''


def written() -> dict[Any, str]:
    """The text of each file."""
    return {OPERATIONS: _formatted(_operations()), METHODS: _formatted(_methods())}


def _operations() -> str:
    cases = [case for case in USE_CASES if case.name not in BY_HAND]
    body = [*map(_route, cases), *map(_function, cases), LISTED]
    text = "\n".join(body)
    return HEAD.format(what="Each use case, once: a function makes its request and knows what it is answered with.") + (
        f"{_imports(text)}\n\n{text}"
    )


LISTED = """
def _listed(given: Iterable[Any] | None) -> list[Any] | None:
    return None if given is None else list(given)


def _mapped(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if given is None else dict(given)


def _text(moment: object) -> str | None:
    return None if moment is None else str(moment)
"""


def _route(case: UseCase) -> str:
    answer = RICHER.get(case.answer.__name__, case.answer.__name__)
    flags = {"in_body": case.in_body, "reads": case.of_store and case.operation.role == "read"}
    more = "".join(f", {name}=True" for name, is_set in flags.items() if is_set)
    return f'{case.name.upper()}_ROUTE = Route("{case.name}", "{case.method}", "{case.path}", {answer}{more})'


def _function(case: UseCase) -> str:
    fields = _fields(case)
    plain = [each for each in fields if not each.named]
    named = [each for each in fields if each.named]
    first = ("name" if case.name in OF_STORES else "store") if case.of_store else None
    given = [*([f"{first}: str"] if first else []), *(each.parameter for each in plain)]
    given += ["*", *(each.parameter for each in named)] if named else []
    answer = RICHER.get(case.answer.__name__, case.answer.__name__)
    more = "".join([", idempotent=False" * (not case.repeatable), ", wait=None" * case.long])
    call = f"{case.name.upper()}_ROUTE.ask({', '.join([first or 'None', *_asked(case, fields)])}{more})"
    noqa = "  # noqa: PLR0913 - the fields of the request" if len(given) > MOST_PARAMETERS else ""
    doc = indent(f"{case.operation.summary}.\n\n{cleandoc(case.run.__doc__ or '')}", "    ").strip()
    return f'''

def {case.name}({noqa}
    {", ".join(given)}
) -> ClientRequest[{answer}]:
    """{doc}
    """
    return {call}
'''


def _asked(case: UseCase, fields: list[Field]) -> Iterator[str]:
    """The request: its Struct, or a mapping where callers may send mappings for the Structs in it."""
    if case.request is None:
        return
    if any(each.holds_structs for each in fields):
        yield "{" + ", ".join(f'"{each.wire}": {each.value}' for each in fields) + "}"
    else:
        yield f"{case.request.__name__}({', '.join(f'{each.name}={each.value}' for each in fields)})"


class Field(msgspec.Struct, frozen=True):
    """A field of a request as a parameter: its type and its default as source text."""

    name: str
    wire: str
    type: Any
    default: str | None
    named: bool

    @property
    def _item(self) -> Any:
        found = [each for each in (self.type, *get_args(self.type)) if get_origin(_bare(each)) is list]
        item = get_args(_bare(found[0]))[0] if found else None
        # What is read item by item is of a Struct, or anything else.
        return next((part for part in get_args(_bare(item)) if _is_struct(part)), item)

    @property
    def holds_structs(self) -> bool:
        """Whether it is a list of Structs."""
        return self._item is not None and _is_struct(_bare(self._item))

    @property
    def listed_struct(self) -> Any:
        """Of what is a text or a list of Structs, that Struct."""
        parts = [_bare(part) for part in get_args(_bare(self.type))]
        items = [get_args(part)[0] for part in parts if get_origin(part) is list]
        return items[0] if str in parts and items and _is_struct(items[0]) else None

    @property
    def only(self) -> tuple[str, str, Any] | None:
        """Of a Struct with one field: its name, and the name and type of the field, which callers give themselves."""
        found = next((kind for kind in map(_bare, (self.type, *get_args(self.type))) if _is_struct(kind)), None)
        inside = () if found is None else msgspec.structs.fields(found)
        return (found.__name__, inside[0].name, inside[0].type) if found and len(inside) == 1 else None

    @property
    def parameter(self) -> str:
        """How it stands in a signature."""
        kind, default = _source(self.only[2] if self.only else self.type), self.default
        if self.only and type(None) in get_args(self.type):
            kind += " | None"
        if self.name in MOMENTS and "str" in kind:
            kind = "int | str | None" if "None" in kind else "int | str"
        if self.holds_structs:
            kind, default = f"Iterable[Mapping[str, Any] | {_bare(self._item).__name__}]", "()"
        elif default == "[]":
            kind, default = f"Iterable[{_source(self._item)}]", "()"
        return f"{self.name}: {kind}" + ("" if default is None else f" = {default}")

    @property
    def value(self) -> str:
        """How it goes into the request."""
        if self.listed_struct is not None:
            return f"{self.name} if isinstance({self.name}, str) else list({self.name})"
        if self.only:
            return f"None if {self.name} is None else {self.only[0]}({self.only[1]}={self.name})"
        if self._item is not None:
            may_be_none = type(None) in get_args(self.type) and not self.holds_structs
            return f"_listed({self.name})" if may_be_none else f"list({self.name})"
        if any(get_origin(_bare(each)) is dict for each in (self.type, *get_args(self.type))):
            return f"_mapped({self.name})"
        if self.name in MOMENTS and "int" not in _source(self.type):
            return f"_text({self.name})"
        return self.name


def _fields(case: UseCase) -> list[Field]:
    """The fields of a request, those of the path first; a Struct of several fields is not for callers in Python."""
    if case.request is None:
        return []
    hints = get_type_hints(case.request, include_extras=True)
    found = [
        field
        for each in msgspec.structs.fields(case.request)
        for default in (_default(each),)
        for field in (
            Field(
                each.name,
                each.encode_name,
                hints[each.name],
                default,
                default is not None and not _free(case, each.name),
            ),
        )
        if field.only or not any(_is_struct(_bare(part)) for part in (field.type, *get_args(field.type)))
    ]
    found.sort(key=lambda field: (field.name not in case.in_path.values(), field.named))
    if case.name == "drop":
        return [Field("confirm", "confirm", str, None, named=True)]
    return found


def _free(case: UseCase, name: str) -> bool:
    return name in case.positional


def _default(field: msgspec.structs.FieldInfo) -> str | None:
    if field.default is not msgspec.NODEFAULT:
        return f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
    return None if field.default_factory is msgspec.NODEFAULT else repr(field.default_factory())


def _bare(kind: Any) -> Any:
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _source(kind: Any) -> str:
    """A type as it is written in a signature."""
    kind = _bare(kind)
    if alias := next((name for name, each in ALIASES.items() if each == kind), None):
        return alias
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, parts))}]"
    if origin is list:
        item = f"Mapping[str, Any] | {_source(parts[0])}" if _is_struct(parts[0]) else _source(parts[0])
        return f"Iterable[{item}]"
    if origin is dict:
        return "Mapping[str, Any]"
    if parts:
        return " | ".join(dict.fromkeys(map(_source, parts)))
    return "None" if kind is type(None) else kind.__name__


def _quoted(value: object) -> str:
    return f'"{value}"'


def _imports(text: str) -> str:
    lines = ["from collections.abc import Iterable, Mapping", "from typing import Any, Literal"]
    richer = ", ".join(sorted(RICHER.values()))
    lines += [f"from kgserve.client.answers import {richer}", "from kgserve.client.wire import ClientRequest, Route"]
    modules: dict[str, set[str]] = {}
    for alias, module in ALIAS_MODULES.items():
        modules.setdefault(module.__name__, set()).add(alias)
    for case in USE_CASES:
        fields = _fields(case) if case.name not in BY_HAND else []
        items = [_bare(each._item) for each in fields if each.holds_structs]  # noqa: SLF001 - of this module
        items += [each.listed_struct for each in fields if each.listed_struct is not None]
        singles = [part for each in fields if each.only for part in map(_bare, get_args(each.type))]
        for kind in (case.answer, case.request, *items, *singles):
            if kind is not None and _is_struct(kind) and kind.__name__ in text:
                modules.setdefault(kind.__module__, set()).add(kind.__name__)
    return "\n".join([*lines, *(f"from {name} import {', '.join(sorted(kinds))}" for name, kinds in modules.items())])


# Not from the package, which begins with these methods.
IMPORTS = """import kgserve.client.asynchronous as awaited
import kgserve.client.blocking as waiting
import kgserve.client.operations as ask
import kgserve.client.streams as by_hand
"""


def _methods() -> str:
    names = [case.name for case in USE_CASES]
    of_store = [name for name in names if name not in {*OF_SERVER, *OF_STORES}]
    of_store += [
        "entity_history",
        "children",
        "descendants",
        "ancestors",
        "cypher",
        "cypher_rows",
        "import_",
        "export",
        "store_events",
    ]
    classes = [
        f'''

class {prefix}{name}{f"({prefix}StoresMethods)" if name == "ServerMethods" else ""}:
    """{doc}"""

{"" if name == "ServerMethods" else f"    connection: {connection}{chr(10)}"}
{"    name: str" + chr(10) if name == "StoreMethods" else ""}
{"".join(_method(each, module, store=name == "StoreMethods") for each in listed)}'''
        for prefix, module, connection in (
            ("", "waiting", "waiting.Answering"),
            ("Async", "awaited", "awaited.AsyncConnection"),
        )
        for name, doc, listed in (
            ("StoresMethods", "What is asked of all stores, or before there is one.", OF_STORES),
            ("ServerMethods", "What is asked of a server.", OF_SERVER),
            ("StoreMethods", "What is asked of one store.", of_store),
        )
    ]
    head = HEAD.format(what="The methods of the clients, for those who wait and for those who await.")
    return head + IMPORTS + "".join(classes)


def _method(name: str, module: str, *, store: bool) -> str:
    made = STREAMS.get(name, "ClientRequest")
    maker = {"Paged": "pages", "Following": "listens"}.get(made, "streams" if made.startswith("Streamed") else "asks")
    shown = "events" if name == "store_events" else name
    return f"    {shown} = {module}.{'store_' * store}{maker}({'by_hand' if name in STREAMS else 'ask'}.{name})\n"


def _formatted(text: str) -> str:
    for command in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(OPERATIONS), "-"]
        text = subprocess.run(  # noqa: S603 - our own tool
            ruff, input=text, capture_output=True, text=True, check=True, cwd=TOP
        ).stdout
    return text


def main() -> None:
    """Write both files anew."""
    for path, text in written().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
