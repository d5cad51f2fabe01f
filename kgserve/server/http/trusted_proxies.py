"""The address of a client behind reverse proxies that were named in the settings."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

from kgserve.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable


_FORWARDED_FOR = b"x-forwarded-for"
_MAX_HOPS = 20


class Proxies:
    """The reverse proxies in front of this server. Only those that were named are believed about who a client is."""

    def __init__(self, networks: tuple[IPv4Network | IPv6Network, ...] = ()) -> None:
        self.networks = networks

    @classmethod
    def parse(cls, text: str) -> Proxies:
        """From addresses and networks that are separated by commas. Raises InvalidInput."""
        return cls(tuple(_network(part.strip()) for part in text.split(",") if part.strip()))

    def include(self, address: str) -> bool:
        """Whether a proxy has this address."""
        if not self.networks:
            return False
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self.networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The address of the client: the peer's, or what the nearest proxy that is not ours wrote down.

        Each proxy adds whom it talks to at the end; what stands before the last one that we do not know is hearsay.
        """
        if not self.include(peer):
            return peer
        named = ",".join(value.decode("latin-1") for name, value in headers if name == _FORWARDED_FOR)
        for hop in reversed(named.split(",")[-_MAX_HOPS:]):
            parsed = _parsed(hop.strip())
            if parsed is None:
                return peer
            peer = str(parsed)
            if not self.include(peer):
                return peer
        return peer


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidInput(f"--trusted-proxies: {text!r} is no address and no network: {error}") from None


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """An address with or without a port; an IPv4 address in IPv6's clothes is the IPv4 address."""
    host, _, rest = text.removeprefix("[").partition("]")
    if not rest and host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
