"""Base class for objects closed at the end of a `with` block."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self


class ClosableContext:
    """Context manager that calls `close` on exit."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
