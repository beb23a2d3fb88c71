"""ConsoleSettings: the settings of the web console."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from actors.host.metrics.endpoint import MetricsSettings
from cluster.control.placement import is_loopback


class ConsoleSettings(MetricsSettings):
    """Settings of the web console."""

    nameservers: list[str] = Field(min_length=1)
    """Addresses of the nameservers, `host:port`."""
    listen_host: str = "127.0.0.1"
    """The address to listen on."""
    listen_port: int = Field(default=8085, ge=0, le=65535)
    """The port to listen on; 0 chooses a free port."""
    read_only: bool = False
    """Refuse all changes."""
    login: bool = False
    """Always require a login. Without it, a login is required if the brokers refuse unsigned requests."""
    bodies: Literal["shown", "masked", "hidden"] = "shown"
    """What the console shows of message bodies: all, the first characters, or only the size."""
    tls_certificate: Path | None = None
    """PEM file of the certificate for HTTPS."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key, without a password."""
    insecure: bool = False
    """Permit an address that other machines can reach without a login and without TLS."""
    data_dir: Path | None = None
    """Directory of the actor `console-0`, in which it keeps its target state."""
    request_timeout_ms: int = Field(default=10_000, ge=100)
    """The time in which a client must send a request, after which its connection is closed. A client that
    reads no response is given six times as long.
    """
    sample_interval_ms: int = Field(default=5_000, ge=100)
    """The shortest time between two samples of rates and lags."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key belong together: give both or neither")
        if not (self.is_local or self.login or self.tls_certificate or self.insecure):
            raise ValueError(
                f"the console would listen on {self.listen_host}, which other machines can reach, and show "
                "and change everything without a login: give --login, or --tls-certificate and --tls-key; if "
                "the network is private, give --insecure"
            )
        return self

    @property
    def is_local(self) -> bool:
        """True if only programs of this machine can connect."""
        return is_loopback(self.listen_host)
