"""The engines' packages, as far as the server knows them: whether they are there, and in which version."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from kgserve.errors import InvalidInput
from kgserve.settings import EngineName


@cache
def edition(engine: EngineName) -> str:
    """An engine with its version, such as ``kuzu 0.11.3``; nothing of it is imported.

    Raises InvalidInput, with what to do, for one that is not installed.
    """
    try:
        return f"{engine} {version(engine)}"
    except PackageNotFoundError:
        raise InvalidInput(
            f"the engine {engine} is not installed; run: pip install 'kgserve[{engine}]', or take kuzu (KGSERVE_ENGINE)"
        ) from None
