"""Argument fields that several tools share, and conversion of arguments to requests.

Optional fields default to UNSET instead of None, although null is accepted. Clients expect one plain type per field in
a schema; some send text for fields with two types. Empty values count as omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kgserve.graph import request_bodies
from kgserve.graph.compat.versioned_nodes_field_names import FieldNames, copy_struct_field_definition
from kgserve.server.mcp.tool_input_schema import UNLISTED_SCHEMA_KEY
from kgserve.storage.model.attribute_filters import AttributeConditionsInput
from kgserve.storage.model.node_edge_fields import MAX_ID_BYTES

ArgumentsType = TypeVar("ArgumentsType", bound=msgspec.Struct)
UNLISTED_FIELD = Meta(extra_json_schema={UNLISTED_SCHEMA_KEY: True})
IdField = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
LabelField = Annotated[str, Meta(min_length=1, max_length=MAX_ID_BYTES)]
NameField = Annotated[str, Meta(max_length=MAX_ID_BYTES)]
VersionField = Annotated[int, Meta(ge=1, lt=1 << 53)]
QueryField = Annotated[str, Meta(min_length=1, max_length=10_000)]
OffsetField = Annotated[int, Meta(ge=0, le=10_000)]
RelationTypesField = Annotated[list[str], Meta(max_length=100, description="Only these")] | UnsetType
TypesField = Annotated[list[str], Meta(max_length=100, description="Any of these")] | UnsetType
TagsField = Annotated[list[str], Meta(max_length=100, description="All of these")] | UnsetType
AttributesField = Annotated[AttributeConditionsInput, Meta(description='Such as {"status": "open"}')] | UnsetType
StoresField = (
    Annotated[
        list[LabelField], Meta(max_length=request_bodies.MAX_ALSO_STORES, description="Other stores to search, too")
    ]
    | UnsetType
)
AtLeastField = Annotated[Annotated[int, Meta(ge=0)] | UnsetType, UNLISTED_FIELD]
AsOfField = (
    Annotated[request_bodies.AsOfText, Meta(description="As recorded then: RFC 3339 time or sequence")] | UnsetType
)
ValidAtField = Annotated[str, Meta(max_length=64, description="True at this time: RFC 3339 time, now, any")] | UnsetType
AuthorField = Annotated[NameField, Meta(description="Author")] | UnsetType
TimeField = Annotated[str, Meta(max_length=64, description="RFC 3339")] | UnsetType
TargetStoreField = Annotated[str, Meta(max_length=64, description="Store that `to` is in, if another")] | UnsetType
ValidToField = Annotated[str, Meta(max_length=64, description="True until then, RFC 3339; default: now")] | UnsetType
_COMMON_FIELDS: dict[str, Any] = {
    "attributes": AttributesField,
    "types": TypesField,
    "also": StoresField,
    "at_least": AtLeastField,
    "as_of": AsOfField,
    "valid_at": ValidAtField,
}
"""Fields of requests whose descriptions the tools replace."""


class StoreToolArguments(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Arguments of a tool that works on one store."""

    index: Annotated[str, Meta(description="Store name")] | UnsetType = UNSET


class FieldNamesToolArguments(StoreToolArguments, kw_only=True):
    """Arguments of a tool that returns nodes or edges; `field_names` selects the names of their fields."""

    field_names: Annotated[FieldNames | UnsetType, UNLISTED_FIELD] = UNSET


class ReadToolArguments(FieldNamesToolArguments, kw_only=True):
    """Arguments of a reading tool; `detail` asks for all fields."""

    detail: Annotated[bool, Meta(description="Include times, versions")] = False


def add_request_fields_to_arguments(
    request: type[msgspec.Struct], *but: str
) -> Callable[[type[ArgumentsType]], type[ArgumentsType]]:
    """Return a class decorator that appends the fields of ``request``, except ``but``, that the class lacks."""

    def extended(own: type[ArgumentsType]) -> type[ArgumentsType]:
        left = [each for each in msgspec.structs.fields(request) if each.name not in {*own.__struct_fields__, *but}]
        fields = [
            (each.name, _COMMON_FIELDS[each.name], UNSET)
            if each.name in _COMMON_FIELDS
            else (each.name, each.type, copy_struct_field_definition(each))
            for each in left
        ]
        return _made(own.__name__, own, own.__doc__ or "", fields) if fields else own

    return extended


def _made(
    name: str, base: type[ArgumentsType], doc: str, fields: Sequence[tuple[str, Any, Any]]
) -> type[ArgumentsType]:
    made = msgspec.defstruct(name, fields, bases=(base,), namespace={"__doc__": doc}, kw_only=True)
    return cast("type[ArgumentsType]", made)


def convert_arguments_to_request(request: type[ArgumentsType], given: msgspec.Struct) -> ArgumentsType:
    """Return the request built from arguments, matching fields by their names on the wire."""
    values = ((field, getattr(given, name), optional) for field, name, optional in _shared(request, type(given)))
    return request(**{field: value for field, value, optional in values if value or not optional})


@cache
def _shared(request: type[msgspec.Struct], arguments: type[msgspec.Struct]) -> list[tuple[str, str, bool]]:
    """Return the common fields: name in the request, name in the arguments, and whether it is optional."""
    names = dict(zip(request.__struct_encode_fields__, request.__struct_fields__, strict=True))
    fields = [each for each in msgspec.structs.fields(arguments) if each.encode_name in names]
    return [(names[each.encode_name], each.name, each.default is UNSET) for each in fields]
