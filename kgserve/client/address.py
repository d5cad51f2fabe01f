"""Which server a client means."""

from __future__ import annotations

import os
import ssl

import httpx
import msgspec

from kgserve.errors import InvalidInput
from kgserve.model.hosts import is_loopback
from kgserve.server_file import read_server_file, trust
from kgserve.settings import Settings, load

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


class Address(msgspec.Struct, frozen=True):
    """Where a server is, and the token to send it, if any."""

    url: str
    token: str | None = None
    certificate: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Target:
    """A server: named by its URL, or the one that serves a data folder, wherever it listens at the time."""

    def __init__(self, url: str | None, data: str | os.PathLike[str] | None, key: str | None) -> None:
        """Raises InvalidInput for a URL that is none, and for settings in the environment that are wrong."""
        settings = load({"data_dir": data, "key": key})
        self._key = settings.key or None
        self._learned: str | None = None
        if url is None:
            self._settings = settings
            self.address = _of_folder(settings, self._key)
        else:
            self._settings = None
            self.address = _named(_whole(url), settings, self._key)
        self.authorities = authorities(self.address, local=url is None)

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine: proxies of the environment would be asked for 127.0.0.1."""
        return self._settings is not None or is_loopback(httpx.URL(self.address.url).host)

    def look_again(self) -> None:
        """A server that was started anew may have another port and certificate, and has another token."""
        if self._settings is None:
            return
        before, self.address = self.address, _of_folder(self._settings, self._key)
        if self.address.certificate not in {None, before.certificate} and isinstance(self.authorities, ssl.SSLContext):
            self.authorities.load_verify_locations(cadata=self.address.certificate)


def _of_folder(configured: Settings, key: str | None) -> Address:
    running = read_server_file(configured.data_dir)
    if running is not None:
        return Address(running.url.rstrip("/"), key or running.token, running.certificate)
    host = _EVERYWHERE.get(configured.host, configured.host)
    scheme = "https" if configured.tls_cert else "http"
    return Address(f"{scheme}://{f'[{host}]' if ':' in host else host}:{configured.port}", key)


def _named(url: str, configured: Settings, key: str | None) -> Address:
    """A server at a URL; of the one that serves the data folder, token and certificate are known."""
    running = read_server_file(configured.data_dir)
    if running is None or not _is_at(httpx.URL(running.url), url):
        return Address(url, key)
    return Address(url, key or running.token, running.certificate)


def _is_at(there: httpx.URL, url: str) -> bool:
    """Whether a server that listens ``there`` is the one that answers at ``url``."""
    asked = httpx.URL(url)
    return asked.port == there.port and asked.host in {there.host, _EVERYWHERE.get(there.host, there.host)}


def authorities(address: Address, *, local: bool) -> ssl.SSLContext | bool:
    """Whom to believe about certificates: the server of the data folder about its own, others as usual.

    Loading the usual ones takes 40 ms, which plain HTTP has no use for.
    """
    if address.url.startswith("https:") and not local and address.certificate is None:
        return True
    return trust(address.certificate or "")


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
