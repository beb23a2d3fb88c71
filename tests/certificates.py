"""Certificates for tests: a CA and the certificates that it signs, as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trustme

PRIVATE_MODE = 0o600
LOCAL_NAMES = ("127.0.0.1", "localhost")


class Authority:
    """A certificate authority that writes PEM files into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def sub(self, name: str) -> Path:
        """Write the certificate of a CA that this one has signed; return its path."""
        path = self._folder / f"{name}.pem"
        self._ca.create_child_ca().cert_pem.write_to_path(str(path))
        return path

    def issue(self, name: str = "server", hosts: Sequence[str] = LOCAL_NAMES) -> tuple[Path, Path]:
        """Write a certificate for `hosts` and its key; return their paths. Replace existing files."""
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        issued = self._ca.issue_cert(*hosts)
        for path, data in (
            (certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (key, issued.private_key_pem.bytes()),
        ):
            temporary = path.with_suffix(".new")
            temporary.write_bytes(data)
            temporary.chmod(PRIVATE_MODE)
            temporary.replace(path)
        return certificate, key
