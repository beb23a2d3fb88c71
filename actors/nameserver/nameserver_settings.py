"""The nameserver's settings, and their conversion to and from texts by RocketMQ's keys.

A setting that RocketMQ has too keeps RocketMQ's meaning and default, and accepts its key.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, Field

from actors.host.cluster_access import AccessSettings
from actors.host.metrics.endpoint import MetricsSettings
from actors.wire.settings_text import HostName, changes_by_field, settings_as_texts
from store.common.live_settings import LIVE

# Keys that RocketMQ's nameserver also reports, and that are not settings here.
_CONSTANTS = {
    "clusterTest": "false",
    "enableAllTopicList": "true",
    "enableControllerInNamesrv": "false",
    "enableTopicList": "true",
    "productEnvName": "center",
    "returnOrderTopicConfigToBroker": "true",
    "supportActingMaster": "false",
}


class NameserverSettings(AccessSettings, MetricsSettings):
    """The settings of one nameserver process."""

    listen_host: HostName = "127.0.0.1"
    """The address to bind to."""
    listen_port: int = Field(9876, ge=0, le=65535, validation_alias=AliasChoices("listen_port", "listenPort"))
    """The port to listen on; 0 chooses a free port."""
    max_connections: int = Field(20_000, ge=1)
    """The largest number of open connections. Over it, idle ones are closed for new ones."""
    max_connections_per_address: int = Field(0, ge=0)
    """The largest number of open connections of one IP address, or IPv6 network (/64); 0: no limit. Many
    clients may share one.
    """
    max_brokers: int = Field(1_000, ge=1)
    """The largest number of broker groups; the registration of a further one is refused."""
    max_topics: int = Field(200_000, ge=1)
    """The largest number of topics of all brokers; a registration that would exceed it is refused."""
    max_kv_entries: int = Field(10_000, ge=1)
    """The largest number of entries in the kv config. Together they have at most 4 MiB."""
    data_dir: Path | None = Field(
        None, description="The directory of the kv config file; if unset, the kv config is lost at a restart."
    )
    cluster_name: str = "DefaultCluster"
    """Name of the cluster in policies (`Cluster:NAME`)."""
    access_file: Path | None = Field(
        None,
        description="A file of users and policies, such as a broker's `config/raymqAccess.json`: with "
        "`authentication_enabled`, its users may delete topics, and change write permissions of brokers and "
        "the kv config, as far as their policies allow it. If unset, only the inner user may. An absolute "
        "path.",
    )
    users_register_brokers: bool = False
    """Whether users of `access_file` with the permission `Update` on the cluster may register and unregister
    brokers too. RocketMQ's own brokers need it, since they cannot sign as the inner user. Such a user can
    direct clients to any address.
    """
    broker_expiry_ms: Annotated[int, LIVE] = Field(120_000, ge=1)
    """A broker that neither registers nor sends a heartbeat for this long is removed from the routes."""
    scan_interval_ms: Annotated[int, LIVE] = Field(
        5_000, ge=1, validation_alias=AliasChoices("scan_interval_ms", "scanNotActiveBrokerInterval")
    )
    """The interval between checks for such brokers."""
    delete_topic_with_broker_registration: bool = Field(
        False,
        validation_alias=AliasChoices(
            "delete_topic_with_broker_registration", "deleteTopicWithBrokerRegistration"
        ),
    )
    """Whether a topic that is missing in a broker's registration is removed from that broker."""
    order_message_enable: Annotated[bool, LIVE] = Field(
        False, validation_alias=AliasChoices("order_message_enable", "orderMessageEnable")
    )
    """Whether routes contain the order configuration of their topic (mqadmin's updateOrderConf)."""


def nameserver_properties(settings: NameserverSettings) -> dict[str, str]:
    """Return all settings and `_CONSTANTS` as texts, sorted by key."""
    return dict(sorted((_CONSTANTS | settings_as_texts(settings)).items()))


def by_field(texts: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Convert texts by key into changes by field, for `LiveSettings.update`; also return the unknown keys."""
    return changes_by_field(NameserverSettings, texts)
