"""What a search may be narrowed by. Filters are exact: k results when k entities match."""

from __future__ import annotations

import msgspec


class Filter(msgspec.Struct, frozen=True):
    """Types to keep (None: all) and what ids must start with ("" for anything)."""

    types: frozenset[str] | None = None
    id_prefix: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether everything passes."""
        return self.types is None and not self.id_prefix

    def passes(self, node_id: str, node_type: str) -> bool:
        """Whether one entity passes."""
        return (self.types is None or node_type in self.types) and node_id.startswith(self.id_prefix)


ANYTHING = Filter()
