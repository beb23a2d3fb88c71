"""The gateway's settings."""

from pathlib import Path

from pydantic import Field

from actors.host.cluster_access import AccessSettings
from actors.host.metrics.endpoint import MetricsSettings
from actors.memory_account import REQUEST_BYTES
from actors.wire.settings_text import Addresses, HostName


class GatewaySettings(AccessSettings, MetricsSettings):
    """Settings of one gateway process."""

    listen_host: HostName = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(8081, ge=0, le=65535)
    """The port for gRPC clients, plain and with TLS; 0 is a free one."""
    nameservers: Addresses = Field(default_factory=list)
    """Addresses of the nameservers from which routes are fetched."""
    data_dir: Path | None = None
    """Directory of the process on Ray: the settings of its last start are kept there."""
    route_timeout_ms: int = Field(3_000, ge=1)
    """Timeout of a route request."""
    send_timeout_ms: int = Field(3_000, ge=1)
    """Timeout of a request to a broker, if the client's deadline is later."""
    route_cache_ms: int = Field(20_000, ge=1)
    """Time for which a route is used before it is fetched again."""
    producer_heartbeat_interval_ms: int = Field(20_000, ge=1)
    """Interval at which brokers get the transaction producers of the gateway."""
    max_connections: int = Field(20_000, ge=1)
    """Limit of the connections of clients. Over it, idle ones are closed for new ones."""
    queued_max_request_bytes: int = Field(REQUEST_BYTES.limit, ge=1024 * 1024)
    """Limit of the memory for requests, incomplete ones too, and for responses that clients do not read.
    Above it clients are not read, and those that hold the most lose a request if others need room.
    """
    tls_self_signed: bool = False
    """Make a new certificate at each start, if `tls` is permissive or enforced and `tls_certificate` is not
    set. Connections are encrypted, but clients cannot verify the gateway: RocketMQ's proxy does this by
    default, and the SDKs for Java, Go and C# accept it.
    """
    drain_timeout_ms: int = Field(5_000, ge=0)
    """Time that open calls have to end when the gateway stops."""

    @property
    def makes_certificate(self) -> bool:
        """True if the gateway makes its own certificate when it starts."""
        return self.tls_self_signed and self.tls != "disabled" and self.tls_certificate is None
