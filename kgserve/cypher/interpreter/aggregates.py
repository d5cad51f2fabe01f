"""Aggregates of openCypher, computed row by row."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

from typing_extensions import override

from kgserve.cypher.interpreter import temporal_functions
from kgserve.cypher.interpreter.arithmetic import add_or_concatenate, divide_cypher_values
from kgserve.cypher.interpreter.opencypher_syntax_tree import (
    CountStar,
    FunctionInvocation,
    QuerySyntaxNode,
    SubqueryExpressionNode,
)
from kgserve.cypher.interpreter.value_comparison import (
    build_order_by_sort_key,
    describe_value,
    is_number,
    value_equivalence_key,
)
from kgserve.cypher.interpreter.value_size_limits import (
    count_nested_elements,
    is_list_map_or_long_string,
    require_value_within_element_limit,
)
from kgserve.errors import InvalidInput


class _FloatSum:
    """Sum of floats with the rounding errors compensated, as Neumaier does."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._compensation = 0.0

    def add(self, value: float) -> None:
        """Add a number."""
        total = self._sum + value
        if abs(self._sum) >= abs(value):
            self._compensation += (self._sum - total) + value
        else:
            self._compensation += (value - total) + self._sum
        self._sum = total

    @property
    def total(self) -> float:
        """Sum of the numbers so far."""
        return self._sum + self._compensation if math.isfinite(self._sum) else self._sum


class AggregateAccumulator(ABC):
    """State of one aggregate over the rows of one group."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def add(self, values: Sequence[Any]) -> None:
        """Add the values of the arguments for one row; ``count(*)`` has none. Raises InvalidInput."""

    def add_count(self, count: int) -> None:
        """Add a number of rows that are all counted."""
        for _ in range(count):
            self.add(())

    @abstractmethod
    def result(self) -> Any:
        """Return the aggregate of the rows so far. Raises InvalidInput."""

    def _check_number(self, value: Any) -> None:
        if not is_number(value):
            raise InvalidInput(f"{self.name}() expects numbers, not {describe_value(value)}")


class _RowCounter(AggregateAccumulator):
    """``count(*)`` and ``count(value)``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0

    @override
    def add(self, values: Sequence[Any]) -> None:
        if not values or values[0] is not None:
            self._count += 1

    @override
    def add_count(self, count: int) -> None:
        self._count += count

    @override
    def result(self) -> int:
        return self._count


class _ValueCollector(AggregateAccumulator):
    """``collect(value)``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._items: list[Any] = []
        self._weight = 0

    @override
    def add(self, values: Sequence[Any]) -> None:
        value = values[0]
        if value is None:
            return
        self._items.append(value)
        if is_list_map_or_long_string(value):
            self._weight += count_nested_elements(value)
            require_value_within_element_limit(self._weight)

    @override
    def result(self) -> list[Any]:
        return self._items


class _SumAccumulator(AggregateAccumulator):
    """``sum(value)`` of numbers or durations; a sum of integers is an integer."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._sum: Any = None

    @override
    def add(self, values: Sequence[Any]) -> None:
        value = values[0]
        if value is None:
            return
        if not _is_duration(value):
            self._check_number(value)
        self._sum = value if self._sum is None else add_or_concatenate(self._sum, value)

    @override
    def result(self) -> Any:
        return 0 if self._sum is None else self._sum


class _AverageAccumulator(AggregateAccumulator):
    """``avg(value)`` of numbers, always a float, or of durations."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._numbers = _FloatSum()
        self._durations: Any = None
        self._count = 0

    @override
    def add(self, values: Sequence[Any]) -> None:
        value = values[0]
        if value is None:
            return
        if _is_duration(value) != (self._durations is not None) and self._count:
            raise InvalidInput(f"{self.name}() cannot combine numbers and durations")
        self._count += 1
        if _is_duration(value):
            self._durations = value if self._durations is None else add_or_concatenate(self._durations, value)
        else:
            self._check_number(value)
            self._numbers.add(float(value))

    @override
    def result(self) -> Any:
        if not self._count:
            return None
        if self._durations is not None:
            return divide_cypher_values(self._durations, self._count)
        return self._numbers.total / self._count


class _ExtremeAccumulator(AggregateAccumulator):
    """``min(value)`` and ``max(value)`` by the order of ORDER BY."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._is_maximum = name == "max"
        self._key: tuple[Any, ...] | None = None
        self._value: Any = None

    @override
    def add(self, values: Sequence[Any]) -> None:
        value = values[0]
        if value is None:
            return
        key = build_order_by_sort_key(value)
        if self._key is None or (key > self._key if self._is_maximum else key < self._key):
            self._key, self._value = key, value

    @override
    def result(self) -> Any:
        return self._value


class _DeviationAccumulator(AggregateAccumulator):
    """``stDev(value)`` of a sample, ``stDevP(value)`` of a population, by Welford's algorithm.

    The deviation of fewer than two values is 0.0.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    @override
    def add(self, values: Sequence[Any]) -> None:
        if values[0] is None:
            return
        self._check_number(values[0])
        self._count += 1
        distance = values[0] - self._mean
        self._mean += distance / self._count
        self._squares += distance * (values[0] - self._mean)

    @override
    def result(self) -> float:
        divisor = self._count - 1 if self.name == "stDev" else self._count
        return math.sqrt(self._squares / divisor) if divisor > 0 else 0.0


class _PercentileAccumulator(AggregateAccumulator):
    """``percentileCont(value, percentile)``, interpolated, and ``percentileDisc``, the nearest value."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._numbers: list[float] = []
        self._percentile: float | None = None

    @override
    def add(self, values: Sequence[Any]) -> None:
        number, percentile = values
        if not is_number(percentile) or not 0 <= percentile <= 1:
            raise InvalidInput(f"the percentile of {self.name}() must be 0.0 to 1.0, not {describe_value(percentile)}")
        self._percentile = float(percentile)
        if number is not None:
            self._check_number(number)
            self._numbers.append(number)

    @override
    def result(self) -> float | None:
        if not self._numbers or self._percentile is None:
            return None
        numbers = sorted(self._numbers, key=build_order_by_sort_key)
        if self.name == "percentileDisc":
            return numbers[max(math.ceil(self._percentile * len(numbers)) - 1, 0)]
        place = self._percentile * (len(numbers) - 1)
        below, above = numbers[math.floor(place)], numbers[math.ceil(place)]
        return float(below) if below == above else below + (above - below) * (place - math.floor(place))


class _DistinctAccumulator(AggregateAccumulator):
    """Aggregate of each value once."""

    def __init__(self, inner: AggregateAccumulator) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._seen: set[Hashable] = set()

    @override
    def add(self, values: Sequence[Any]) -> None:
        key = value_equivalence_key(values[0]) if values else None
        if key not in self._seen:
            self._seen.add(key)
            self._inner.add(values)

    @override
    def result(self) -> Any:
        return self._inner.result()


_AGGREGATES: dict[str, tuple[str, type[AggregateAccumulator], int]] = {
    "count": ("count", _RowCounter, 1),
    "collect": ("collect", _ValueCollector, 1),
    "sum": ("sum", _SumAccumulator, 1),
    "avg": ("avg", _AverageAccumulator, 1),
    "min": ("min", _ExtremeAccumulator, 1),
    "max": ("max", _ExtremeAccumulator, 1),
    "stdev": ("stDev", _DeviationAccumulator, 1),
    "stdevp": ("stDevP", _DeviationAccumulator, 1),
    "percentilecont": ("percentileCont", _PercentileAccumulator, 2),
    "percentiledisc": ("percentileDisc", _PercentileAccumulator, 2),
}
AGGREGATE_NAMES = frozenset(_AGGREGATES)
SHOWN_AGGREGATE_NAMES = tuple(shown for shown, _, _ in _AGGREGATES.values())
"""Names of the aggregates as openCypher writes them."""


def find_outermost_aggregates(tree: object) -> Iterator[FunctionInvocation | CountStar]:
    """Yield the outermost aggregates of an expression, without those of its subqueries."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if type(part) is tuple:
            pending += reversed(cast("tuple[Any, ...]", part))
        elif isinstance(part, CountStar) or (isinstance(part, FunctionInvocation) and part.name in AGGREGATE_NAMES):
            yield part
        elif isinstance(part, QuerySyntaxNode) and not isinstance(part, SubqueryExpressionNode):
            pending += [getattr(part, name) for name in reversed(part.__struct_fields__)]


def check_aggregate_argument_count(call: FunctionInvocation) -> None:
    """Raise InvalidInput for a wrong number of arguments of an aggregate."""
    name, _, count = _AGGREGATES[call.name]
    if len(call.arguments) != count:
        plural = "" if count == 1 else "s"
        raise InvalidInput(f"{name}() takes {count} argument{plural}, not {len(call.arguments)}")


def create_aggregate_accumulator(name: str, *, is_distinct: bool = False) -> AggregateAccumulator:
    """Create the accumulator of an aggregate; ``count(*)`` is ``count`` whose values are empty."""
    shown, kind, _ = _AGGREGATES[name]
    accumulator = kind(shown)
    return _DistinctAccumulator(accumulator) if is_distinct else accumulator


def _is_duration(value: Any) -> bool:
    return temporal_functions.is_temporal_value(value) and temporal_functions.temporal_type_name(value) == "DURATION"
