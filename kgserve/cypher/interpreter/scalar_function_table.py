"""Table of all scalar functions of the interpreter."""

from __future__ import annotations

import difflib
import uuid
from datetime import datetime
from functools import partial
from typing import Any

from kgserve.cypher.interpreter import iso8601_temporal_parser, temporal_functions
from kgserve.cypher.interpreter.apoc_and_vector_functions import CLIENT_FUNCTIONS
from kgserve.cypher.interpreter.graph_element_functions import GRAPH_FUNCTIONS
from kgserve.cypher.interpreter.kuzu_function_hints import describe_kuzu_only_function
from kgserve.cypher.interpreter.list_and_map_functions import LIST_FUNCTIONS
from kgserve.cypher.interpreter.math_functions import MATH_FUNCTIONS
from kgserve.cypher.interpreter.scalar_function_definition import ANY, STRING, ScalarFunction
from kgserve.cypher.interpreter.string_functions import STRING_FUNCTIONS
from kgserve.cypher.interpreter.temporal_values import ZonedDateTime
from kgserve.cypher.interpreter.type_conversion_functions import CONVERSION_FUNCTIONS
from kgserve.cypher.lexer import ALLOWED_FUNCTIONS
from kgserve.errors import InvalidInput
from kgserve.platform.timestamps import complete_time_to_rfc3339

FUNCTIONS: dict[str, ScalarFunction] = {
    **CLIENT_FUNCTIONS,
    **CONVERSION_FUNCTIONS,
    **GRAPH_FUNCTIONS,
    **LIST_FUNCTIONS,
    **MATH_FUNCTIONS,
    **STRING_FUNCTIONS,
    "randomuuid": ScalarFunction("randomUUID", lambda: str(uuid.uuid4()), is_volatile=True),
}
"""Functions by their names in lower case; those of temporal values, ``coalesce`` and ``timestamp`` are found too."""

_UNSUPPORTED_FUNCTIONS = frozenset({"point", "distance", "point.distance", "point.withinbbox"})
_MAX_SUGGESTIONS = 3


def find_scalar_function(name: str, now: datetime) -> ScalarFunction:
    """Return the scalar function with a lower-case name; ``now`` is the statement time. Raises InvalidInput."""
    if found := FUNCTIONS.get(name):
        return found
    if name == "timestamp":
        return ScalarFunction("timestamp", partial(_tell_timestamp, now), (STRING,))
    if function := temporal_functions.FUNCTIONS.get(name):
        return _adapt_temporal(name, function, now)
    if name in _UNSUPPORTED_FUNCTIONS:
        raise InvalidInput(f"not supported: {name}(); spatial values cannot be stored")
    if name in ALLOWED_FUNCTIONS:
        raise InvalidInput(describe_kuzu_only_function(name))
    known = [*FUNCTIONS, *temporal_functions.FUNCTIONS, "coalesce", "timestamp"]
    nearest = difflib.get_close_matches(name, known, _MAX_SUGGESTIONS)
    shown = [f"{FUNCTIONS[each].name if each in FUNCTIONS else each}()" for each in nearest]
    raise InvalidInput(f"unknown function {name}()" + (f"; did you mean {' or '.join(shown)}?" if shown else ""))


def _tell_timestamp(now: datetime, text: str | None = None) -> Any:
    """Return the statement time in milliseconds since 1970 or, as the engine does, the time that a text states."""
    if text is None:
        return int(now.timestamp() * 1000)
    completed = complete_time_to_rfc3339(text)
    if completed is None:
        raise InvalidInput(f"timestamp() takes a time such as '2025-07-15 12:00:00', not {text!r}")
    return iso8601_temporal_parser.parse_iso8601_temporal_value(ZonedDateTime, completed)


def _adapt_temporal(name: str, function: temporal_functions.TemporalFunction, now: datetime) -> ScalarFunction:
    return ScalarFunction(
        name,
        partial(function, now=now),
        (ANY,) * function.max_arguments,
        function.min_arguments,
        takes_null=True,
        is_volatile=name.endswith(".realtime"),
    )
