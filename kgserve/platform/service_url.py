"""The address and the key of a service that kgserve asks, checked before anything is sent there."""

from __future__ import annotations

import httpx

from kgserve.errors import InvalidInput


def address_of(url: str, option: str) -> httpx.URL:
    """The base address that an option names. Raises InvalidInput, which names the option."""
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{option} is not an address: {error}") from None
    if base.scheme not in {"http", "https"} or not base.host:
        raise InvalidInput(f"{option} must be the base address of a service, such as https://host/v1")
    return base


def headers_of(key: str, option: str) -> dict[str, str]:
    """Those of a question in JSON, with a bearer's key if there is one. Raises InvalidInput, which names the option."""
    if not (key.isascii() and (key.isprintable() or not key)):
        raise InvalidInput(f"{option} holds characters that no key has")
    headers = {"Content-Type": "application/json"}
    return headers | {"Authorization": f"Bearer {key}"} if key else headers
