"""Which server a client means."""

from __future__ import annotations

import os
import ssl
from http import HTTPStatus
from typing import Any

import httpx

from kgserve.client.lines import Upload
from kgserve.client.wire import Call
from kgserve.errors import InvalidInput
from kgserve.model.cluster import AT_LEAST_HEADER, READ_HEADER
from kgserve.model.hosts import is_loopback
from kgserve.reach import Server, at, configured, find, trust
from kgserve.settings import load

MOST_MOVES = 5
"""So often one call is sent on: a store has one owner, and may move while it is asked for."""


class Target:
    """A server: named by its URL, or the one that serves a data folder, wherever it listens at the time.

    Several URLs, separated by commas, are nodes of one cluster, of which any may be asked. Where the stores are that
    the others serve is remembered. With ``copies`` whoever is asked may answer reads from a copy, which has what this
    client wrote and saw before.
    """

    def __init__(
        self, url: str | None, data: str | os.PathLike[str] | None, key: str | None, *, copies: bool = False
    ) -> None:
        """Raises InvalidInput for a URL that is none, and for settings in the environment that are wrong."""
        self._settings = load({"data_dir": data, "key": key})
        self._urls = [] if url is None else [_checked(each) for each in url.split(",")]
        self._places: dict[str, Server] = {}
        self._copies = copies
        self._seen: dict[str, int] = {}
        self.address = self._find()
        self.authorities = self._authorities()

    @property
    def addresses(self) -> int:
        """How many nodes may be asked."""
        return max(len(self._urls), 1)

    @property
    def nearby(self) -> bool:
        """Whether it is on this machine: proxies of the environment would be asked for 127.0.0.1."""
        return all(is_loopback(httpx.URL(url).host) for url in self._urls)

    @property
    def headers(self) -> dict[str, str]:
        """What each request says beside its own: that of a server on this machine no answer need be made smaller."""
        return {"Accept-Encoding": "identity"} if self.nearby else {}

    def look_again(self) -> None:
        """A server that was started anew may have another port and certificate, and has another token.

        Of several the next one is asked.
        """
        self._places.clear()
        if self._urls:
            self._urls.append(self._urls.pop(0))
            if len(self._urls) > 1:
                self.address = self._find()
            return
        before, self.address = self.address, self._find()
        if self.address.certificate not in {None, before.certificate} and isinstance(self.authorities, ssl.SSLContext):
            self.authorities.load_verify_locations(cadata=self.address.certificate)

    def serving(self, call: Call[Any]) -> Server:
        """Where a call is to be sent."""
        return self.address if self._reads_copy(call) else self._places.get(_about(call), self.address)

    def reading(self, call: Call[Any]) -> dict[str, str]:
        """What a call that may be answered from a copy says of that."""
        if not self._reads_copy(call):
            return {}
        seen = self._seen.get(_about(call))
        return {READ_HEADER: "copy"} | ({} if seen is None else {AT_LEAST_HEADER: str(seen)})

    def saw(self, call: Call[Any], answer: Any) -> None:
        """Note of which commit an answer is: later ones from copies are not to be older."""
        sequence = getattr(answer, "sequence", None)
        if call.route.name == "drop":
            self._seen.pop(_about(call), None)
        elif self._copies and call.store and isinstance(sequence, int):
            self._seen[call.store] = max(sequence, self._seen.get(call.store, 0))

    def forget(self, call: Call[Any]) -> None:
        """Where a call was sent nobody answers, or who cannot: ask again where its store is."""
        self._places.pop(_about(call), None)

    def sent_on(self, call: Call[Any], response: httpx.Response) -> Server | None:
        """The other node that serves the store, says an answer, where the call is to be sent again if it can be."""
        location, asked = response.headers.get("location", ""), response.request.url.raw_path.decode("ascii")
        if response.status_code != HTTPStatus.TEMPORARY_REDIRECT or not location.endswith(asked):
            return None
        found = at(location.removesuffix(asked), self._settings.data_dir).with_key(self._settings.key)
        if not self._reads_copy(call):
            self._places[_about(call)] = found
        return found if not call.spent or (isinstance(call.body, Upload) and call.body.is_repeatable) else None

    def _reads_copy(self, call: Call[Any]) -> bool:
        return self._copies and call.route.reads

    def _find(self) -> Server:
        settings = self._settings
        if self._urls:
            found = at(self._urls[0], settings.data_dir)
        else:
            listening = configured(settings.host, settings.port, tls=settings.tls_cert is not None)
            found = find(settings.data_dir) or listening
        return found.with_key(settings.key)

    def _authorities(self) -> ssl.SSLContext | bool:
        """Whom to believe about certificates: the server of the data folder about its own, others as usual.

        Loading the usual ones takes 40 ms, which plain HTTP has no use for.
        """
        if self.address.url.startswith("https:") and self._urls and self.address.certificate is None:
            return True
        return trust(self.address.certificate or "")


def _about(call: Call[Any]) -> str:
    """What a call is about: a store, or what its path names."""
    return call.store or call.path


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
