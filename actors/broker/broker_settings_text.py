"""The settings of a broker and its store as one flat table of texts, RocketMQ's form of a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from actors.broker.broker_settings import BrokerSettings, broker_id_of
from actors.wire.settings_text import changes_by_field, names_by_key, settings_as_texts
from store.store_settings import StoreSettings

STORE_KEY = "store"
_FLUSH_KEY = "flushDiskType"
_ADDRESS_KEY = "brokerIP1"
_ROLES = {"master": "ASYNC_MASTER", "slave": "SLAVE"}
_FLUSH = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
# Keys that RocketMQ's exportConfigs and exportMetrics read and that are not settings here.
_CONSTANTS = {
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "traceTopicEnable": "false",
    "useTLS": "false",
}


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into those of the broker and those of its store.

    The store's settings may be under the key `store`, or at the top level as in RocketMQ's `broker.conf`.
    """
    inner = settings.get(STORE_KEY)
    of_store = dict(inner) if isinstance(inner, Mapping) else {}
    plain = {key: value for key, value in settings.items() if key != STORE_KEY}
    of_broker = names_by_key(BrokerSettings)
    for key in [key for key in plain if key not in of_broker and key in names_by_key(StoreSettings)]:
        of_store[key] = plain.pop(key)
    return plain, of_store


def by_field(settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Convert texts by key into changes by field, for `LiveSettings.update`; also return the unknown keys."""
    plain, of_store = split_settings(settings)
    changes, unknown = changes_by_field(BrokerSettings, plain)
    if of_store:
        changes[STORE_KEY] = changes_by_field(StoreSettings, of_store)[0]
    return changes, unknown


def as_properties(settings: BrokerSettings) -> dict[str, str]:
    """Return all settings and `_CONSTANTS` as texts, sorted by key."""
    values = _CONSTANTS | settings_as_texts(settings) | settings_as_texts(settings.store)
    values["brokerRole"] = _ROLES[settings.role]
    values["brokerId"] = str(broker_id_of(settings.role, settings.replica))
    values[_FLUSH_KEY] = _FLUSH[settings.store.flush]
    values[_ADDRESS_KEY] = settings.host  # RocketMQ reports an address even if it is not configured
    return dict(sorted(values.items()))
