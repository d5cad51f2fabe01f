"""Host names and network addresses."""

from __future__ import annotations

import ipaddress

_PREFIX_BITS = 64


def is_loopback(host: str) -> bool:
    """Return whether a server bound to ``host`` is reachable from this machine only."""
    name = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def is_wildcard_address(host: str) -> bool:
    """Return whether ``host`` means all addresses of a machine, and so cannot be connected to."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


def network_counted_as_one_client(address: str) -> str:
    """Return the network that counts as one client: the address itself, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, ipaddress.IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> _PREFIX_BITS << _PREFIX_BITS)}/{_PREFIX_BITS}"
