"""What the edge asks before a request gets in: from where it is, whose page sent it, and whether it is one too many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kgserve.http.cors import Origins
from kgserve.http.proxies import UNKNOWN, Proxies
from kgserve.http.rates import Rates

if TYPE_CHECKING:
    from litestar.types import HTTPScope

    from kgserve.settings import Settings


class Traffic(NamedTuple):
    """The rules of one server."""

    proxies: Proxies
    origins: Origins
    rates: Rates

    @classmethod
    def of(cls, settings: Settings) -> Traffic:
        """Those that were set. Raises InvalidInput for settings that say nothing sensible."""
        return cls(
            Proxies.parse(settings.trusted_proxies),
            Origins.parse(settings.cors_origins),
            Rates(settings.rate_limit),
        )

    def address(self, scope: HTTPScope) -> str:
        """The client's address, behind proxies as they say."""
        client = scope["client"]
        return self.proxies.client(client[0], scope["headers"]) if client else UNKNOWN
