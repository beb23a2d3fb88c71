"""The rebalancer's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from actors.remoting.settings_text import Addresses
from actors.strategies import make_strategy
from store.live_settings import LIVE
from store.settings_model import SettingsModel


class RebalancerSettings(SettingsModel):
    """Everything one rebalancer process is told at its start."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "expire_interval_ms": "lease_check_interval_ms",
        "route_interval_ms": "route_refresh_interval_ms",
    }

    listen_host: str = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(0, ge=0, le=65535)
    """The port to listen on; 0 is a free one."""
    nameservers: Addresses = Field(default_factory=list)
    """Whom to ask for the routes."""
    data_dir: Path
    """Where the generations are kept."""
    lease_ms: Annotated[int, LIVE] = Field(
        15_000, ge=1, description="The lease of a queue where a member does not ask for another."
    )
    min_lease_ms: Annotated[int, LIVE] = Field(500, ge=1)
    """The shortest lease that a member gets."""
    max_lease_ms: Annotated[int, LIVE] = Field(120_000, ge=1)
    """The longest that it may ask for."""
    heartbeat_expiry_ms: Annotated[int, LIVE] = Field(
        120_000, ge=1, description="A member that assigns itself, and is not heard of for so long, is gone."
    )
    strategy: str = "averagely"
    """How queues are shared out, where neither the group nor its members say."""
    strategies: dict[str, str] = Field(
        default_factory=dict, description="Strategies by group, before what members ask for."
    )
    allow_subscription_change: Annotated[bool, LIVE] = False
    """Whether members of a group may subscribe to different things."""
    route_refresh_interval_ms: Annotated[int, LIVE] = Field(5_000, ge=1)
    """How often the routes are asked for."""
    route_timeout_ms: int = Field(1_000, ge=1)
    """How long their answer is waited for."""
    route_grace_ms: int = Field(
        60_000, ge=0, description="How long queues that have left the routes stay with their owners."
    )
    lease_check_interval_ms: Annotated[int, LIVE] = Field(500, ge=1)
    """How often leases are looked at."""

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
