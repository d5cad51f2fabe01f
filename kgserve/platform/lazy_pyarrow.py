"""Arrow, imported when it is first used: it takes 25 MiB and a third of a second, and most servers never need it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Its functions are made at run time, where no type checker sees them.
    pc: Any
else:

    class _Later:
        """A module as soon as one of its names is asked for."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    pa, pc, pq = map(_Later, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))


def arrow_type(name: str) -> pa.DataType:
    """The type of this name; ``[]`` behind it makes lists."""
    item = name.removesuffix("[]")
    return pa.type_for_alias(item) if item == name else pa.list_(pa.type_for_alias(item))


__all__ = ["arrow_type", "pa", "pc", "pq"]
