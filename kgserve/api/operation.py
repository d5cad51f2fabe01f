"""Operations of the API: their description in OpenAPI, and for most of them the implementing function."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from inspect import cleandoc
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from kgserve.graph.compat.versioned_nodes_field_names import (
    VERSIONED_JSON_MEDIA_TYPE,
    derive_versioned_api_answer_struct,
    rename_to_versioned_fields,
)
from kgserve.graph.store_handle import JsonEncodedAnswer, StoreHandle
from kgserve.platform.access.authentication import Role
from kgserve.platform.media_types import JSON_MEDIA_TYPE

STORE_PATH = "/api/memory/{store}"
OPERATION_OPT_KEY = "operation"
ALIAS_OPT_KEY = "alias"
"""Key of a handler's ``opt`` that marks an alias route, which the API description omits."""
STORE_HEADER = "Kgserve-Store"
STORE_PARAMETER = "store"
SEQUENCE_HEADER = "Kgserve-Sequence"
_RAISES_SENTENCE_PATTERN = re.compile(r"(?<=[.:])\s+Raises\s.*?\.(?=\s|$)", re.DOTALL)

# The second row is the transport's: any request can have these errors.
COMMON_ERRORS = (
    *("invalid", "unauthenticated", "forbidden", "misdirected", "internal", "unavailable"),
    *("limited", "url_too_long", "head_too_large"),
)
READ_ERRORS = (*COMMON_ERRORS, "not_found", "timeout")
WRITE_ERRORS = (
    *COMMON_ERRORS,
    *("timeout", "conflict", "too_large", "unsupported", "storage_full", "idempotency_key_reused"),
)
UPDATE_ERRORS = (*WRITE_ERRORS, "not_found")
"""Errors of writes to something that must exist."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class ApiBodyExample(NamedTuple):
    """Request or answer body: its Struct, or None for text without a schema, and one example.

    ``many``: a bare array of it. ``optional``: a request may omit the body.
    """

    struct: type[msgspec.Struct] | None
    example: Any
    media: str = JSON_MEDIA_TYPE
    many: bool = False
    optional: bool = False


class ApiOperation(NamedTuple):
    """API operation: description of one method of one path. ``errors`` are codes of `problem.KINDS`.

    ``others``: answers in other media types, selected by Accept. ``role``: the role that a key needs. ``of_default``:
    the store is not in the path but in the query, a header, or the settings. ``note``: Markdown for the reference
    tables in docs/ only.
    """

    id: str
    tag: str
    summary: str
    answer: ApiBodyExample
    errors: tuple[str, ...] = COMMON_ERRORS
    request: ApiBodyExample | None = None
    query: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    headers: tuple[tuple[str, str], ...] = ()
    others: tuple[ApiBodyExample, ...] = ()
    role: Role = "admin"
    of_default: bool = False
    note: str = ""


def build_litestar_opt(operation: ApiOperation) -> dict[str, Any]:
    """Return the ``opt`` of the handler that implements ``operation``."""
    return {OPERATION_OPT_KEY: operation}


class ApiUseCase:
    """API operation implemented by a function that takes a `StoreHandle` or `CallerStoreHandles`, and a request.

    The function's annotations define request and answer; its docstring is the description, except for paragraphs
    and sentences that begin with "Raises", which are for Python callers. Request fields named in the path come from
    there, the others from the query, or from the body if ``sent``, an example of it, is given.

    - ``name``: name of the client's method.
    - ``answer``: type in the API description, if it differs from the example's.
    - ``short``: function from a request to the number of rows that it reads or writes, None for many, or 0. With few
      rows, the request runs in the event loop if it need not wait, else in one of the ``threads``.
    - ``status``: function from an answer to its status, if that is not always 200.
    - ``repeatable``: the operation is idempotent.
    - ``long``: clients wait for the answer without a time limit.
    - ``positional``: optional parameters of the client's method that may be positional.
    - ``location``: function from an answer with status 201 to the path of the created resource.
    - ``nothing``: answer while the default store does not exist.
    - ``also``: further methods with the same effect.
    - ``administers``: predicate of requests that need the administrator role and are recorded in the audit log.

    Derived: the Structs ``request`` and ``answer``; ``of_store``, True if the operation is about one store;
    ``takes_names``, True if it answers with nodes or edges, whose fields have alternative names.
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
        short: Callable[[Any], int | None] | Literal[0] | None = None,
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
        self.answer: Any = get_args(found)[0] if get_origin(found) in {Future, JsonEncodedAnswer} else found
        self.of_store = parameters[0] is StoreHandle
        self.request: type[msgspec.Struct] | None = parameters[1] if len(parameters) > 1 else None
        self.in_body = sent is not None
        body = ApiBodyExample(self.sent, sent, optional=optional) if self.in_body else None
        query = None if self.in_body else self.sent
        described_answer = ApiBodyExample(answer or type(example), example)
        headers = (("Location", "Path of the created resource"),) if location else ()
        renamed = derive_versioned_api_answer_struct(answer or type(example))
        self.takes_names = renamed is not described_answer.struct
        versioned = ApiBodyExample(
            renamed, rename_to_versioned_fields(msgspec.to_builtins(example)), VERSIONED_JSON_MEDIA_TYPE
        )
        self.operation = ApiOperation(
            *(id, tag, summary, described_answer, errors, body, query, statuses, headers),
            others=(versioned,) if self.takes_names else (),
            role=role,
            of_default=self.of_store and not path.startswith(STORE_PATH),
            note=note,
        )

    @property
    def description(self) -> str:
        """Description of the operation for callers over the network."""
        paragraphs = cleandoc(self.run.__doc__ or "").split("\n\n")
        kept = [text for text in paragraphs if not text.startswith("Raises ")]
        return "\n\n".join(_RAISES_SENTENCE_PATTERN.sub("", text) for text in kept)

    @cached_property
    def path_fields(self) -> dict[str, str]:
        """The request's fields that the path names: wire name to Python name."""
        if self.request is None:
            return {}
        names = zip(self.request.__struct_encode_fields__, self.request.__struct_fields__, strict=True)
        return {wire: field for wire, field in names if f"{{{wire}}}" in self.path}

    @property
    def sent(self) -> type[msgspec.Struct] | None:
        """Struct of the query's or the body's content, or None."""
        if self.request is None or not self.path_fields:
            return self.request
        base = self.request.__bases__[0]
        return None if base is msgspec.Struct else base

    def ask(self, target: Any, request: msgspec.Struct | None) -> Any:
        """Call the function. Returns a Struct, JSON, or a Future of a Struct."""
        return self.run(target) if request is None else self.run(target, request)


ExecutorName: TypeAlias = Literal["reads", "writes", "transfers", "statements", "writing_statements"]
