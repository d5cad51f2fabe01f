"""TLS certificate of the server, checked at startup and on reload."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from kgserve.errors import InvalidInput
from kgserve.platform.server_discovery import create_client_tls_context

if TYPE_CHECKING:
    from pathlib import Path

    from kgserve.platform.settings import Settings

log = structlog.get_logger()

EXPIRY_WARNING_DAYS = 14
"""Days before expiry at which the server logs a warning."""

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_MISMATCH = "KEY_VALUES_MISMATCH"


class ServerCertificate:
    """Certificate chain and private key of the server, with their SSL context. `reload` reads the files again."""

    def __init__(self, chain: Path, key: Path) -> None:
        """Read the files. Raises InvalidInput when they cannot be used."""
        self._chain = chain
        self._key = key
        self.pem = ""
        self.ends: datetime | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        self.context.set_alpn_protocols(["http/1.1"])
        self.reload()

    @classmethod
    def from_settings(cls, settings: Settings) -> ServerCertificate | None:
        """Return the certificate that the settings name, or None. Raises InvalidInput."""
        match settings.tls_cert, settings.tls_key:
            case None, None:
                return None
            case chain, key if chain is not None and key is not None:
                return cls(chain, key)
            case _:
                raise InvalidInput("--tls-cert and --tls-key must be given together, or neither to serve without TLS")

    def reload(self) -> None:
        """Read both files again; new connections use their content. Raises InvalidInput and keeps the old one."""
        text = _read_pem(self._chain)
        if "ENCRYPTED" in _read_pem(self._key):
            raise InvalidInput(f"{self._key} has a password; use a key without one, in a file that only you can read")
        # Checked in a context of its own first: a key that does not match makes a context unusable.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load(self.context)
        _, begin, rest = text.partition(_BEGIN)
        self.pem = f"{begin}{rest.partition(_END)[0]}{_END}\n"
        self._check_expiry()

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._chain, self._key, password="")
        except ssl.SSLError as error:
            differ = error.reason == _MISMATCH
            reason = "the key belongs to another certificate" if differ else "one of them is not a valid PEM file"
            raise InvalidInput(f"{self._chain} and {self._key} cannot be used for TLS: {reason}") from None
        except OSError as error:
            raise InvalidInput(f"{self._key} cannot be read: {(error.strerror or str(error)).lower()}") from None

    def _check_expiry(self) -> None:
        self.ends = find_certificate_expiry(self.context, self.pem)
        if self.ends is None:
            log.warning("certificate_not_valid", path=str(self._chain), reason="it has expired, or is not valid yet")
        elif (left := (self.ends - datetime.now(UTC)).days) < EXPIRY_WARNING_DAYS:
            log.warning("certificate_ends_soon", path=str(self._chain), days=left)


def find_certificate_expiry(context: ssl.SSLContext, pem: str) -> datetime | None:
    """Return when a certificate expires; None when it is not valid now.

    Runs a handshake in memory, because the standard library reports the expiry only to the peer.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = create_client_tls_context(pem).wrap_bio(to_client, to_server)
    try:
        for side in (client, server, client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLError:
        return None
    expiry = (client.getpeercert() or {}).get("notAfter")
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(expiry), UTC) if isinstance(expiry, str) else None


def _read_pem(path: Path) -> str:
    try:
        text = path.read_text("latin-1")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if "-----BEGIN " not in text:
        raise InvalidInput(f"{path} is not a PEM file: no line begins with -----BEGIN")
    return text
