"""Settings under RocketMQ's names, as its `.conf` files and mqadmin write them: flat texts.

Where RocketMQ has a setting, its camelCase key stands for it; ours have their own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator

from store.settings_model import SettingsModel


def _split_addresses(value: object) -> object:
    """Accept RocketMQ's `a:9876;b:9876` where a list is meant."""
    if isinstance(value, str):
        return [address.strip() for address in value.split(";") if address.strip()]
    return value


Addresses = Annotated[list[str], BeforeValidator(_split_addresses)]


def rocketmq_key(model: type[BaseModel], name: str) -> str | None:
    """RocketMQ's key of a setting; None where it has none."""
    field = model.model_fields[name]
    if isinstance(field.validation_alias, AliasChoices):
        return str(field.validation_alias.choices[-1])
    return field.alias


def names_by_key(model: type[BaseModel]) -> dict[str, str]:
    """Return the field that each key means: the fields' names, their old names and RocketMQ's keys."""
    names = {name: name for name in model.model_fields}
    keys = {key: name for name in names if (key := rocketmq_key(model, name)) is not None}
    return names | keys | (dict(model.RENAMED) if issubclass(model, SettingsModel) else {})


def changes_by_field(model: type[BaseModel], settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Texts by key as changes by field (`LiveSettings.update`), and the keys unknown."""
    names = names_by_key(model)
    changes = {names[key]: value for key, value in settings.items() if key in names}
    return changes, sorted(settings.keys() - names.keys())


def settings_as_texts(settings: BaseModel) -> dict[str, str]:
    """The settings of a model as texts by key, without those of inner models."""
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
        return (";" if isinstance(value, list) else ",").join(map(str, value))  # addresses, and paths
    return str(value)
