"""What tools' arguments are made of: the fields that several tools take, and the requests that arguments become.

A field that may be left out is unset and not null, although null is taken: clients look for one plain type per field
in a schema, and some send text for what has two. Such a field is left out when it is empty, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import requests
from kgserve.graph.compat.versioned_names import FieldNames, again
from kgserve.server.mcp.input_schema import UNLISTED
from kgserve.storage.model.attributes import Wanted
from kgserve.storage.model.fields import MAX_ID_BYTES

S = TypeVar("S", bound=msgspec.Struct)
UNLISTED_FIELD = Meta(extra_json_schema={UNLISTED: True})
IdField = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
LabelField = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
NameField = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
VersionField = Annotated[int, Meta(ge=1, lt=1 << 53)]
QueryField = Annotated[str, Meta(min_length=1, max_length=10_000)]
OffsetField = Annotated[int, Meta(ge=0, le=10_000)]
RelationTypesField = Annotated[list[str], Meta(max_length=100, description="Only these")] | UnsetType
TypesField = Annotated[list[str], Meta(max_length=100, description="Any of these")] | UnsetType
TagsField = Annotated[list[str], Meta(max_length=100, description="All of these")] | UnsetType
AttributesField = Annotated[Wanted, Meta(description='Such as {"status": "open"}')] | UnsetType
StoresField = (
    Annotated[list[LabelField], Meta(max_length=requests.MAX_ALSO_STORES, description="Other stores to ask, too")]
    | UnsetType
)
AtLeastField = Annotated[Annotated[int, Meta(ge=0)] | UnsetType, UNLISTED_FIELD]
AsOfField = Annotated[requests.AsOfText, Meta(description="As known then: RFC 3339 time or sequence")] | UnsetType
ValidAtField = (
    Annotated[str, Meta(max_length=64, description="True then in the world: RFC 3339 time, now, any")] | UnsetType
)
AuthorField = Annotated[NameField, Meta(description="Who writes this")] | UnsetType
MomentField = Annotated[str, Meta(max_length=64, description="RFC 3339")] | UnsetType
TargetStoreField = Annotated[str, Meta(max_length=64, description="Store that `to` is in, if another")] | UnsetType
EndField = Annotated[str, Meta(max_length=64, description="True until then, RFC 3339; left out: now")] | UnsetType
_COMMON_FIELDS: dict[str, Any] = {
    "attributes": AttributesField,
    "types": TypesField,
    "also": StoresField,
    "at_least": AtLeastField,
    "as_of": AsOfField,
    "valid_at": ValidAtField,
}
"""The fields of requests that tools describe in words of their own, the same in each."""


class Arguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool that works on one store."""

    index: Annotated[str, Meta(description="Store name")] | UnsetType = UNSET


class FieldNameArguments(Arguments, kw_only=True):
    """Arguments of a tool that answers with nodes or edges, whose fields have names for those who ask."""

    field_names: Annotated[FieldNames | UnsetType, UNLISTED_FIELD] = UNSET


class DetailArguments(FieldNameArguments, kw_only=True):
    """Arguments of a tool that reads, whose answer may be told whole."""

    detail: Annotated[bool, Meta(description="Times, versions, too")] = False


def with_fields_of(request: type[msgspec.Struct], *but: str) -> Callable[[type[S]], type[S]]:
    """Adds to a class of arguments the fields of ``request`` that it has not, ``but`` some, behind its own."""

    def extended(own: type[S]) -> type[S]:
        left = [each for each in msgspec.structs.fields(request) if each.name not in {*own.__struct_fields__, *but}]
        fields = [
            (each.name, _COMMON_FIELDS[each.name], UNSET)
            if each.name in _COMMON_FIELDS
            else (each.name, each.type, again(each))
            for each in left
        ]
        return _made(own.__name__, own, own.__doc__ or "", fields) if fields else own

    return extended


def _made(name: str, base: type[S], doc: str, fields: Sequence[tuple[str, Any, Any]]) -> type[S]:
    made = msgspec.defstruct(name, fields, bases=(base,), namespace={"__doc__": doc}, kw_only=True)
    return cast("type[S]", made)


def as_request(request: type[S], given: msgspec.Struct) -> S:
    """The request that arguments make, out of fields that have the same names on the wire."""
    values = ((field, getattr(given, name), optional) for field, name, optional in _shared(request, type(given)))
    return request(**{field: value for field, value, optional in values if value or not optional})


@cache
def _shared(request: type[msgspec.Struct], arguments: type[msgspec.Struct]) -> list[tuple[str, str, bool]]:
    """The fields that both have, by their names in each, and whether the arguments may leave each out."""
    names = dict(zip(request.__struct_encode_fields__, request.__struct_fields__, strict=True))
    fields = [each for each in msgspec.structs.fields(arguments) if each.encode_name in names]
    return [(names[each.encode_name], each.name, each.default is UNSET) for each in fields]
