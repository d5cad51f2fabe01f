"""Self-signed certificates as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme


class Files(NamedTuple):
    """Certificate chain, key and trusted authority."""

    cert: Path
    key: Path
    ca: Path


def certificate(folder: Path, name: str = "127.0.0.1", days: int = 90) -> Files:
    """Create a certificate for ``name`` that is valid for ``days`` days."""
    folder.mkdir(parents=True, exist_ok=True)
    files = Files(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    now = datetime.now(UTC)
    authority = trustme.CA()
    issued = authority.issue_cert(name, not_before=now - timedelta(days=100), not_after=now + timedelta(days=days))
    files.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    authority.cert_pem.write_to_path(files.ca)
    files.key.chmod(0o600)
    return files
