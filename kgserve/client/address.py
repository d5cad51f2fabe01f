"""Which server a client means."""

from __future__ import annotations

import os

import httpx
import msgspec

from kgserve.errors import InvalidInput
from kgserve.model.hosts import is_loopback
from kgserve.server_file import read_server_file
from kgserve.settings import Settings, load

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


class Address(msgspec.Struct, frozen=True):
    """Where a server is, and the token to send it, if any."""

    url: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Target:
    """A server: named by its URL, or the one that serves a data folder, wherever it listens at the time."""

    def __init__(self, url: str | None, data: str | os.PathLike[str] | None, token: str | None) -> None:
        """Raises InvalidInput for a URL that is none, and for settings in the environment that are wrong."""
        self._token = token
        if url is None:
            self._settings = load({"data_dir": data})
            self.address = _of_folder(self._settings, token)
        else:
            self._settings = None
            self.address = Address(_whole(url), token)

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine: proxies of the environment would be asked for 127.0.0.1."""
        return self._settings is not None or is_loopback(httpx.URL(self.address.url).host)

    def look_again(self) -> None:
        """A server that was started anew may have another port, and has another token."""
        if self._settings is not None:
            self.address = _of_folder(self._settings, self._token)


def _of_folder(configured: Settings, token: str | None) -> Address:
    running = read_server_file(configured.data_dir)
    if running is not None:
        return Address(running.url.rstrip("/"), token or running.token)
    host = _EVERYWHERE.get(configured.host, configured.host)
    return Address(f"http://{f'[{host}]' if ':' in host else host}:{configured.port}", token)


def _whole(url: str) -> str:
    text = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is no address of a server: {error}") from error
    odd = any(letter.isspace() for letter in text)
    if odd or parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise InvalidInput(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8080")
    return text
