"""Validation of the address and key of an external service before anything is sent to it."""

from __future__ import annotations

import httpx

from kgserve.errors import InvalidInput


def parse_external_service_url(url: str, option: str) -> httpx.URL:
    """Return the base URL given by an option. Raises InvalidInput naming the option."""
    try:
        base = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{option} is not a valid URL: {error}") from None
    if base.scheme not in {"http", "https"} or not base.host:
        raise InvalidInput(f"{option} must be the base URL of a service, such as https://host/v1")
    return base


def build_json_request_headers(key: str, option: str) -> dict[str, str]:
    """Return the headers of a JSON request, with a bearer token if ``key`` is set.

    Raises InvalidInput naming the option.
    """
    if not (key.isascii() and (key.isprintable() or not key)):
        raise InvalidInput(f"{option} contains characters that are not allowed in a key")
    headers = {"Content-Type": "application/json"}
    return headers | {"Authorization": f"Bearer {key}"} if key else headers
