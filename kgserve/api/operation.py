"""What an operation is: what the API description says about it, and for most of them the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from inspect import cleandoc
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from kgserve.graph.compat.versioned_names import VERSIONED_JSON_MEDIA_TYPE, versioned_answer, with_versioned_names
from kgserve.graph.handle import EncodedAnswer, Graph
from kgserve.platform.access.authentication import Role
from kgserve.platform.media_types import JSON_MEDIA_TYPE

STORE_PATH = "/api/memory/{store}"
OPERATION_OPT_KEY = "operation"
ALIAS_OPT_KEY = "alias"
"""The key of a handler's ``opt`` for being another way to an operation, which is described without it."""
STORE_HEADER = "Kgserve-Store"
STORE_PARAMETER = "store"
SEQUENCE_HEADER = "Kgserve-Sequence"

# The second row is the transport's: every request may meet it.
COMMON_ERRORS = (
    *("invalid", "unauthenticated", "forbidden", "misdirected", "internal", "unavailable"),
    *("limited", "url_too_long", "head_too_large"),
)
READ_ERRORS = (*COMMON_ERRORS, "not_found", "timeout")
WRITE_ERRORS = (*COMMON_ERRORS, "timeout", "conflict", "too_large", "unsupported", "storage_full")
UPDATE_ERRORS = (*WRITE_ERRORS, "not_found")
"""Errors of writes to something that has to exist."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Body(NamedTuple):
    """A request or answer body: its Struct, or None for text that no schema describes, and one example.

    ``many``: a bare array of it. ``optional``: a request may come without.
    """

    struct: type[msgspec.Struct] | None
    example: Any
    media: str = JSON_MEDIA_TYPE
    many: bool = False
    optional: bool = False


class Operation(NamedTuple):
    """One method of one path, as it is described; ``errors`` are codes of `problem.KINDS`.

    ``others`` are answers of other media types, for those who accept them. ``role`` is what a key needs for it.
    ``of_default``: it is about a store that its path does not name; the query does, or a header, or the settings.
    ``note``: Markdown for the reference tables of docs/ alone, with limits and links as from a page there.
    """

    id: str
    tag: str
    summary: str
    answer: Body
    errors: tuple[str, ...] = COMMON_ERRORS
    request: Body | None = None
    query: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    headers: tuple[tuple[str, str], ...] = ()
    others: tuple[Body, ...] = ()
    role: Role = "admin"
    of_default: bool = False
    note: str = ""


def described(operation: Operation) -> dict[str, Any]:
    """The ``opt`` of the handler that is ``operation``."""
    return {OPERATION_OPT_KEY: operation}


class UseCase:
    """An operation that is a function of a `Graph`, or of `Graphs`, and a request.

    Its request and its answer are what the function's annotations say, its description is the function's docstring; a
    paragraph that begins with "Raises" is for callers in Python. Of the request's fields those that the path names come
    from there, the rest from the query or, with ``sent``, an example, from the body.

    ``name`` is that of the clients' method; ``answer`` is what the API description names, where the example is another.
    ``short``: from a request to the rows that it writes, or just 0: with few of them it is done where the request
    arrives if nothing has to wait, else in one of the ``threads``. ``status``: from an answer to its status, where that
    is not always 200. ``repeatable``: done twice it comes to the same as once. ``long``: a client waits for the answer
    without end. ``positional``: parameters of the client's that need not be named, beside those without a default.
    ``location``: from an answer with status 201 to the path of what was made. ``nothing``: what is answered where the
    default store is still to be made. ``also``: other methods that do the same. ``administers``: from a request to
    whether it needs the role of an administrator, and is put on record as an act of administration.

    It knows of itself the Structs of its ``request`` and its ``answer``, whether it is ``of_store``: about one, and
    whether it ``takes_names``: it answers with nodes or edges, whose fields may be asked for under other names.
    """

    def __init__(  # noqa: PLR0913 - the columns of the table
        self,
        name: str,
        method: Method,
        path: str,
        run: Callable[..., Any],
        *,
        id: str,  # noqa: A002 - OpenAPI's name
        tag: str,
        role: Role,
        summary: str,
        note: str = "",
        example: msgspec.Struct,
        answer: type[msgspec.Struct] | None = None,
        sent: Any = None,
        optional: bool = False,
        errors: tuple[str, ...] = READ_ERRORS,
        threads: ExecutorName = "reads",
        short: Callable[[Any], int] | Literal[0] | None = None,
        statuses: tuple[int, ...] = (200,),
        status: Callable[[Any], int] | None = None,
        repeatable: bool = True,
        long: bool = False,
        positional: tuple[str, ...] = (),
        location: Callable[[Any], str] | None = None,
        nothing: msgspec.Struct | None = None,
        also: tuple[Method, ...] = (),
        administers: Callable[[Any], bool] | None = None,
    ) -> None:
        self.name, self.path, self.run = name, path, run
        self.method: Method = method
        self.threads: ExecutorName = threads
        self.short, self.status = short, status
        self.location, self.nothing, self.also, self.administers = location, nothing, also, administers
        self.optional, self.repeatable, self.long, self.positional = optional, repeatable, long, positional
        hints = get_type_hints(run)
        found, parameters = hints.pop("return"), list(hints.values())
        self.answer: Any = get_args(found)[0] if get_origin(found) in {Future, EncodedAnswer} else found
        self.of_store = parameters[0] is Graph
        self.request: type[msgspec.Struct] | None = parameters[1] if len(parameters) > 1 else None
        self.in_body = sent is not None
        body = Body(self.sent, sent, optional=optional) if self.in_body else None
        query = None if self.in_body else self.sent
        said = Body(answer or type(example), example)
        headers = (("Location", "Where what was made can be read"),) if location else ()
        renamed = versioned_answer(answer or type(example))
        self.takes_names = renamed is not said.struct
        versioned = Body(renamed, with_versioned_names(msgspec.to_builtins(example)), VERSIONED_JSON_MEDIA_TYPE)
        self.operation = Operation(
            *(id, tag, summary, said, errors, body, query, statuses, headers),
            others=(versioned,) if self.takes_names else (),
            role=role,
            of_default=self.of_store and not path.startswith(STORE_PATH),
            note=note,
        )

    @property
    def description(self) -> str:
        """What it does, for callers over a network."""
        paragraphs = cleandoc(self.run.__doc__ or "").split("\n\n")
        kept = [text for text in paragraphs if not text.startswith("Raises ")]
        return "\n\n".join(text.partition(" Raises ")[0] if text is kept[-1] else text for text in kept)

    @cached_property
    def in_path(self) -> dict[str, str]:
        """The request's fields that the path names: the names on the wire, and in Python."""
        if self.request is None:
            return {}
        names = zip(self.request.__struct_encode_fields__, self.request.__struct_fields__, strict=True)
        return {wire: field for wire, field in names if f"{{{wire}}}" in self.path}

    @property
    def sent(self) -> type[msgspec.Struct] | None:
        """The Struct of what the query or the body holds, if they hold anything."""
        if self.request is None or not self.in_path:
            return self.request
        base = self.request.__bases__[0]
        return None if base is msgspec.Struct else base

    def ask(self, target: Any, request: msgspec.Struct | None) -> Any:
        """What the function answers: a Struct, JSON, or a Future of a Struct."""
        return self.run(target) if request is None else self.run(target, request)


ExecutorName: TypeAlias = Literal["reads", "writes", "transfers", "statements", "writing_statements"]
