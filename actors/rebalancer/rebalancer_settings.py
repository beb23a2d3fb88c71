"""The rebalancer's settings."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from actors.host.cluster_access import AccessSettings
from actors.host.metrics.endpoint import MetricsSettings
from actors.strategies import make_strategy
from actors.wire.settings_text import Addresses, HostName
from store.common.live_settings import LIVE


class RebalancerSettings(AccessSettings, MetricsSettings):
    """Settings of one rebalancer process."""

    listen_host: HostName = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(0, ge=0, le=65535)
    """The port to listen on; 0 is a free one."""
    nameservers: Addresses = Field(default_factory=list)
    """Addresses of the nameservers from which routes are fetched."""
    data_dir: Path
    """Directory in which the generations are stored."""
    lease_ms: Annotated[int, LIVE] = Field(
        15_000, ge=1, description="Lease of a queue if the member does not request another."
    )
    min_lease_ms: Annotated[int, LIVE] = Field(500, ge=1)
    """Shortest lease; shorter requested leases are raised to it."""
    max_lease_ms: Annotated[int, LIVE] = Field(120_000, ge=1)
    """Longest lease that a member may request; a longer one is refused."""
    heartbeat_expiry_ms: Annotated[int, LIVE] = Field(
        120_000,
        ge=1,
        description="Time without heartbeats after which a self-assigning member is removed from its group.",
    )
    strategy: str = "averagely"
    """Default assignment strategy, if neither `strategies` nor the members name one."""
    strategies: dict[str, str] = Field(
        default_factory=dict,
        description="Assignment strategy by group name; overrides the strategy that members request.",
    )
    allow_subscription_change: Annotated[bool, LIVE] = False
    """Whether members of a group may have different subscriptions."""
    route_refresh_interval_ms: Annotated[int, LIVE] = Field(5_000, ge=1)
    """Interval at which routes are fetched from the nameservers."""
    route_timeout_ms: int = Field(1_000, ge=1)
    """Timeout of a route request."""
    route_grace_ms: int = Field(
        60_000,
        ge=0,
        description="Time for which queues that are no longer in the routes stay assigned to their owners.",
    )
    lease_check_interval_ms: Annotated[int, LIVE] = Field(500, ge=1)
    """Interval at which expired leases are removed."""

    @field_validator("strategy")
    @classmethod
    def _strategy_exists(cls, value: str) -> str:
        make_strategy(value)
        return value

    @field_validator("strategies")
    @classmethod
    def _strategies_exist(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            make_strategy(text)
        return value
