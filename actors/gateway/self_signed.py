"""SelfSigned: a certificate that a gateway makes for itself, as RocketMQ's proxy does without a certificate.

Connections with it are encrypted, but nothing proves who the gateway is. The SDKs for Java, Go and C# use TLS
and accept any certificate by default.
"""

from __future__ import annotations

import ipaddress
import socket
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from actors.transport.tls.contexts import OwnCertificate
from store.common.clock import Clock

VALID: Final = timedelta(days=3650)
CLOCK_SKEW: Final = timedelta(days=1)
"""Clients may be behind this machine's time."""


class SelfSigned:
    """Certificate and key in a private folder, until `close`."""

    def __init__(self, listen_host: str, clock: Clock) -> None:
        """Make a new key, and its certificate for this machine's name, `localhost` and `listen_host`."""
        self._folder = tempfile.TemporaryDirectory(prefix="raymq-gateway-")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "RayMQ gateway")])
        now = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + VALID)
            .add_extension(x509.SubjectAlternativeName(_names(listen_host)), critical=False)
            .sign(key, SHA256())
        )
        folder = Path(self._folder.name)  # of mode 0700
        self.own = OwnCertificate(folder / "certificate.pem", folder / "key.pem")
        self.own.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        self.own.key.touch(0o600)
        self.own.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))

    def close(self) -> None:
        """Delete the files."""
        self._folder.cleanup()


def _names(listen_host: str) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName(socket.gethostname())]
    try:
        names.append(x509.IPAddress(ipaddress.ip_address(listen_host)))
    except ValueError:
        names.append(x509.DNSName(listen_host))
    return names
