"""Conversion of settings to and from `key=value` strings, as in RocketMQ's `.conf` files and mqadmin.

A setting that RocketMQ also has uses RocketMQ's camelCase key; RayMQ's own settings use their field name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator

from store.message.hosts import check_host, split_address


def _split_addresses(value: object) -> object:
    """Split RocketMQ's address list `a:9876;b:9876`; return any other value unchanged."""
    if isinstance(value, str):
        return [address.strip() for address in value.split(";") if address.strip()]
    return value


def _check_addresses(addresses: list[str]) -> list[str]:
    for address in addresses:
        split_address(address, min_port=0)  # 0: a port that `up` has not chosen yet
    return addresses


Addresses = Annotated[list[str], BeforeValidator(_split_addresses), AfterValidator(_check_addresses)]
Texts = Annotated[list[str], BeforeValidator(_split_addresses)]
HostName = Annotated[str, AfterValidator(check_host)]
"""A host name or an IP address, without a port; an IPv6 address has no brackets."""


def rocketmq_key(model: type[BaseModel], name: str) -> str | None:
    """Return RocketMQ's key of the setting `name`, or None if RocketMQ does not have that setting."""
    field = model.model_fields[name]
    if isinstance(field.validation_alias, AliasChoices):
        return str(field.validation_alias.choices[-1])
    return field.alias


def names_by_key(model: type[BaseModel]) -> dict[str, str]:
    """Return field names by accepted key: the field name itself and RocketMQ's key."""
    names = {name: name for name in model.model_fields}
    keys = {key: name for name in names if (key := rocketmq_key(model, name)) is not None}
    return names | keys


def changes_by_field(model: type[BaseModel], settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return (values by field name, unknown keys) for settings given by key; see `LiveSettings.update`."""
    names = names_by_key(model)
    changes = {names[key]: value for key, value in settings.items() if key in names}
    return changes, sorted(settings.keys() - names.keys())


def settings_as_texts(settings: BaseModel) -> dict[str, str]:
    """Return the settings of a model as strings by key; nested models are omitted."""
    model = type(settings)
    values = {name: getattr(settings, name) for name in model.model_fields}
    return {
        rocketmq_key(model, name) or name: _text(value)
        for name, value in values.items()
        if not isinstance(value, BaseModel)
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return (";" if isinstance(value, list) else ",").join(
            map(str, value)
        )  # list: addresses; tuple: paths
    return str(value)
