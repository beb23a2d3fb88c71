"""The nameserver's settings. Those that RocketMQ has keep its meaning, its default and, as an alias, its
key.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from store.live_settings import LIVE


class NameserverSettings(BaseModel):
    """Everything one nameserver process is told at its start."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True
    )

    listen_host: str = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(9876, ge=0, le=65535, validation_alias=AliasChoices("listen_port", "listenPort"))
    """The port to listen on; 0 is a free one."""
    max_connections: int = Field(20_000, ge=1)
    """How many connections are open at most."""
    data_dir: Path | None = Field(
        None, description="Where the kv config is kept; without it, it lives as long as the process."
    )
    broker_expiry_ms: Annotated[int, LIVE] = Field(120_000, ge=1)
    """A broker that is not heard of for so long leaves the routes."""
    scan_interval_ms: Annotated[int, LIVE] = Field(
        5_000, ge=1, validation_alias=AliasChoices("scan_interval_ms", "scanNotActiveBrokerInterval")
    )
    """How often that is looked at."""
    delete_topic_with_broker_registration: bool = Field(
        False,
        validation_alias=AliasChoices(
            "delete_topic_with_broker_registration", "deleteTopicWithBrokerRegistration"
        ),
    )
    """Whether a topic goes when no broker registers it any more."""
    order_message_enable: Annotated[bool, LIVE] = Field(
        False, validation_alias=AliasChoices("order_message_enable", "orderMessageEnable")
    )
    """Whether routes carry the order configuration of their topic (mqadmin's updateOrderConf)."""
