"""Address of a client behind trusted reverse proxies."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from kgserve.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable


_FORWARDED_FOR = b"x-forwarded-for"
_MAX_HOPS = 20


class TrustedProxies:
    """Trusted reverse proxies in front of this server. X-Forwarded-For counts only from these."""

    def __init__(self, networks: tuple[IPv4Network | IPv6Network, ...] = ()) -> None:
        self.networks = networks

    @classmethod
    def parse(cls, text: str) -> TrustedProxies:
        """Parse addresses and networks that are separated by commas. Raises InvalidInput."""
        return cls(tuple(_network(part.strip()) for part in text.split(",") if part.strip()))

    def contains(self, address: str) -> bool:
        """Return whether a trusted proxy has this address."""
        if not self.networks:
            return False
        parsed = _parse_address(address)
        return parsed is not None and any(parsed in network for network in self.networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Return the client's address: the peer's, or for a trusted proxy the last address in X-Forwarded-For.

        Each proxy appends the address of its own peer. Addresses of trusted proxies are skipped from the end; entries
        before the last untrusted address could be forged.
        """
        if not self.contains(peer):
            return peer
        named = ",".join(value.decode("latin-1") for name, value in headers if name == _FORWARDED_FOR)
        for hop in reversed(named.split(",")[-_MAX_HOPS:]):
            parsed = _parse_address(hop.strip())
            if parsed is None:
                return peer
            peer = str(parsed)
            if not self.contains(peer):
                return peer
        return peer


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"--trusted-proxies: {text!r} is not an address or network: {error}") from None


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an address with or without a port. An IPv4-mapped IPv6 address becomes the IPv4 address."""
    host, _, rest = text.removeprefix("[").partition("]")
    if not rest and host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
