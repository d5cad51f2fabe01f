"""pyarrow, imported on first use. The import takes 25 MiB and 0.3 s, and most servers never need it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Its functions are created at run time, invisible to type checkers.
    pc: Any
else:

    class _LazyModule:
        """Module proxy that imports the module on first attribute access."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    pa, pc, pq = map(_LazyModule, ("pyarrow", "pyarrow.compute", "pyarrow.parquet"))


def parse_arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type with this name; a suffix ``[]`` makes it a list type."""
    item = name.removesuffix("[]")
    return pa.type_for_alias(item) if item == name else pa.list_(pa.type_for_alias(item))


__all__ = ["pa", "parse_arrow_type", "pc", "pq"]
