"""TlsConfig: how a client verifies brokers and nameservers, and the certificate that it presents."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from actors.transport.tls.contexts import ClientTls, OwnCertificate, TlsInvalid
from cluster.client.errors import ConfigInvalid

TLS_CA_ENV = "RAYMQ_TLS_CA"
TLS_VERIFY_ENV = "RAYMQ_TLS_VERIFY"
TLS_CERTIFICATE_ENV = "RAYMQ_TLS_CERTIFICATE"
TLS_KEY_ENV = "RAYMQ_TLS_KEY"
_FALSE = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """TLS settings of a client. All its connections use TLS.

    Attributes:
        ca_file: PEM file of the CA certificates that have signed the certificates of brokers and nameservers
            (RocketMQ tls.client.trustCertPath). None: the CA certificates of the system.
        verify: Verify the certificates and the host names of brokers and nameservers (RocketMQ
            tls.client.authServer). If False, another machine may pose as a broker.
        certificate: PEM file of the client's certificate, for brokers that require one (RocketMQ
            tls.client.certPath).
        key: PEM file of the certificate's private key, without a password (RocketMQ tls.client.keyPath).
    """

    ca_file: str | Path | None = None
    verify: bool = True
    certificate: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigInvalid if only one of `certificate` and `key` is given."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigInvalid(
                "certificate and key of a client (RAYMQ_TLS_CERTIFICATE and RAYMQ_TLS_KEY) belong together: "
                "give both or neither"
            )

    def load(self) -> ClientTls:
        """Load the files. Raises ConfigInvalid if one is missing or invalid."""
        ca_file = None if self.ca_file is None else Path(self.ca_file).expanduser()
        own = None
        if self.certificate is not None and self.key is not None:
            own = OwnCertificate(Path(self.certificate).expanduser(), Path(self.key).expanduser())
        try:
            return ClientTls(ca_file, own, verify=self.verify)
        except TlsInvalid as error:
            raise ConfigInvalid(f"tls: {error}") from None

    @classmethod
    def from_environment(cls) -> TlsConfig | None:
        """Return the settings in the variables RAYMQ_TLS_…, or None if none of them is set."""
        names = (TLS_CA_ENV, TLS_VERIFY_ENV, TLS_CERTIFICATE_ENV, TLS_KEY_ENV)
        ca_file, verify, certificate, key = (os.environ.get(name) or None for name in names)
        if ca_file is verify is certificate is key is None:
            return None
        return cls(ca_file, (verify or "").lower() not in _FALSE, certificate, key)
