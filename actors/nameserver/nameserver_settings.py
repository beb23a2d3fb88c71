"""The nameserver's settings, and their form as flat texts under RocketMQ's keys.

Settings that RocketMQ has keep its meaning, its default and, as an alias, its key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from actors.remoting.settings_text import changes_by_field, settings_as_texts
from store.live_settings import LIVE
from store.settings_model import SettingsModel

# Constants that RocketMQ's nameserver reports beside its settings.
_CONSTANTS = {
    "clusterTest": "false",
    "enableAllTopicList": "true",
    "enableControllerInNamesrv": "false",
    "enableTopicList": "true",
    "productEnvName": "center",
    "returnOrderTopicConfigToBroker": "true",
    "supportActingMaster": "false",
}


class NameserverSettings(SettingsModel):
    """The settings of one nameserver process."""

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


def as_properties(settings: NameserverSettings) -> dict[str, str]:
    """Return all settings and constants as texts, sorted by their keys."""
    return dict(sorted((_CONSTANTS | settings_as_texts(settings)).items()))


def by_field(texts: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return texts by key as changes by field (`LiveSettings.update`), and the unknown keys."""
    return changes_by_field(NameserverSettings, texts)
