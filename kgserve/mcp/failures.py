"""What is refused or goes wrong outside of tools, as errors of the protocol that show nothing internal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import structlog
from mcp import MCPError, types

from kgserve.errors import Internal, KgserveError
from kgserve.mcp.calls import internal_error

log = structlog.get_logger()


@contextmanager
def as_protocol_errors(**about: str) -> Generator[None]:
    """Raises MCPError for whatever the block raises; the log gets what is ``about`` a defect."""
    try:
        yield
    except MCPError:
        raise
    except Exception as error:
        if isinstance(error, KgserveError) and not isinstance(error, Internal):
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        log.exception("internal_error", **about)
        raise MCPError(types.INTERNAL_ERROR, internal_error()) from None
