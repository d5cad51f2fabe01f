"""Which server a client means."""

from __future__ import annotations

import os
import ssl

import httpx

from kgserve.errors import InvalidInput
from kgserve.model.hosts import is_loopback
from kgserve.reach import Server, at, configured, find, trust
from kgserve.settings import load


class Target:
    """A server: named by its URL, or the one that serves a data folder, wherever it listens at the time."""

    def __init__(self, url: str | None, data: str | os.PathLike[str] | None, key: str | None) -> None:
        """Raises InvalidInput for a URL that is none, and for settings in the environment that are wrong."""
        self._settings = load({"data_dir": data, "key": key})
        self._url = None if url is None else _checked(url)
        self.address = self._find()
        self.authorities = self._authorities()

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine: proxies of the environment would be asked for 127.0.0.1."""
        return self._url is None or is_loopback(httpx.URL(self._url).host)

    @property
    def headers(self) -> dict[str, str]:
        """What each request says beside its own: that of a server on this machine no answer need be made smaller."""
        return {"Accept-Encoding": "identity"} if self.nearby else {}

    def look_again(self) -> None:
        """A server that was started anew may have another port and certificate, and has another token."""
        if self._url is not None:
            return
        before, self.address = self.address, self._find()
        if self.address.certificate not in {None, before.certificate} and isinstance(self.authorities, ssl.SSLContext):
            self.authorities.load_verify_locations(cadata=self.address.certificate)

    def _find(self) -> Server:
        settings = self._settings
        if self._url is not None:
            found = at(self._url, settings.data_dir)
        else:
            listening = configured(settings.host, settings.port, tls=settings.tls_cert is not None)
            found = find(settings.data_dir) or listening
        return found.with_key(settings.key)

    def _authorities(self) -> ssl.SSLContext | bool:
        """Whom to believe about certificates: the server of the data folder about its own, others as usual.

        Loading the usual ones takes 40 ms, which plain HTTP has no use for.
        """
        if self.address.url.startswith("https:") and self._url is not None and self.address.certificate is None:
            return True
        return trust(self.address.certificate or "")


def _checked(url: str) -> str:
    text = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parsed = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url!r} is no address of a server: {error}") from error
    odd = any(letter.isspace() for letter in text)
    if odd or parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
        raise InvalidInput(f"{url!r} is no address of a server; one looks like http://127.0.0.1:8080")
    return text
