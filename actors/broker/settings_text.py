"""A broker's settings under RocketMQ's names, as `broker.conf` and mqadmin write them: flat texts.

Where RocketMQ has a setting, its camelCase key stands for it; ours have their own name. Settings of the store
stand beside those of the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel

from actors.broker.settings import BrokerSettings
from store.settings import StoreSettings

STORE_KEY = "store"
_FLUSH = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}


def rocketmq_key(model: type[BaseModel], name: str) -> str | None:
    """RocketMQ's key of a setting; None where it has none."""
    field = model.model_fields[name]
    if isinstance(field.validation_alias, AliasChoices):
        return str(field.validation_alias.choices[-1])
    return field.alias


def names_by_key(model: type[BaseModel]) -> dict[str, str]:
    """The field that each key means, RocketMQ's keys and the fields' own names."""
    names = {name: name for name in model.model_fields}
    return names | {key: name for name in names if (key := rocketmq_key(model, name)) is not None}


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the broker and of its store: RocketMQ's keys are flat, ours stand below `store`."""
    inner = settings.get(STORE_KEY)
    of_store = dict(inner) if isinstance(inner, Mapping) else {}
    plain = {key: value for key, value in settings.items() if key != STORE_KEY}
    of_broker = names_by_key(BrokerSettings)
    for key in [key for key in plain if key not in of_broker and key in names_by_key(StoreSettings)]:
        of_store[key] = plain.pop(key)
    return plain, of_store


def by_field(settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Flat texts by key as changes by field (`store.live_settings.with_changes`), and the keys unknown."""
    plain, of_store = split_settings(settings)
    broker, store = names_by_key(BrokerSettings), names_by_key(StoreSettings)
    unknown = sorted(plain.keys() - broker.keys())
    changes: dict[str, Any] = {broker[key]: value for key, value in plain.items() if key in broker}
    if of_store:
        changes[STORE_KEY] = {store[key]: value for key, value in of_store.items()}
    return changes, unknown


def as_properties(settings: BrokerSettings) -> dict[str, str]:
    """All settings as texts, sorted by their keys."""
    values: dict[str, str] = {}
    for model in (settings, settings.store):
        for name in type(model).model_fields:
            value = getattr(model, name)
            if not isinstance(value, BaseModel):
                values[rocketmq_key(type(model), name) or name] = _text(name, value)
    return dict(sorted(values.items()))


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return (";" if isinstance(value, list) else ",").join(map(str, value))  # addresses, and paths
    return _FLUSH[str(value)] if name == "flush" else str(value)
