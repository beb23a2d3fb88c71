"""Settings accept the old names of the previous release, with a warning."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pydantic import ValidationError

from actors.broker.broker_settings import BrokerSettings
from actors.broker.broker_settings_text import by_field
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from store.settings_model import SettingsModel
from store.store_settings import StoreSettings

MODELS: list[type[SettingsModel]] = [BrokerSettings, StoreSettings, NameserverSettings, RebalancerSettings]
REQUIRED: dict[type[SettingsModel], dict[str, str]] = {RebalancerSettings: {"data_dir": "rebalancer"}}
RENAMED = [(model, old, new) for model in MODELS for old, new in model.RENAMED.items()]


@pytest.mark.parametrize(("model", "old", "new"), RENAMED)
def test_old_setting_names_are_accepted_with_a_warning(
    model: type[SettingsModel], old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    value: Any = model.model_fields[new].default
    changed = (not value) if isinstance(value, bool) else value + 1

    with caplog.at_level(logging.WARNING):
        settings = model.model_validate({**REQUIRED.get(model, {}), old: changed})

    assert getattr(settings, new) == changed
    assert f"use {new}; the next release refuses {old}" in caplog.text


@pytest.mark.parametrize(("model", "old", "new"), RENAMED)
def test_setting_with_old_and_new_name_is_refused(model: type[SettingsModel], old: str, new: str) -> None:
    with pytest.raises(
        ValidationError, match=f"{old} is the old name of {new}, and both are set: remove {old}"
    ):
        model.model_validate({old: 1, new: 1})


def test_old_setting_names_are_accepted_in_broker_config_text() -> None:
    changes, unknown = by_field({"young_topics_are_read_from_start": "false", "clean_by_force": "false"})

    assert changes == {
        "consume_new_topics_from_start": "false",
        "store": {"force_clean_enabled": "false"},
    }
    assert unknown == []
