"""Settings refuse names that they do not know."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from actors.broker.broker_settings import BrokerSettings
from actors.broker.broker_settings_text import by_field
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from store.common.settings_model import SettingsModel
from store.store_settings import StoreSettings

MODELS: list[type[SettingsModel]] = [BrokerSettings, StoreSettings, NameserverSettings, RebalancerSettings]


@pytest.mark.parametrize("model", MODELS)
def test_unknown_setting_is_refused_by_name(model: type[SettingsModel]) -> None:
    with pytest.raises(ValidationError, match=r"lock_wait_ms\n  Extra inputs are not permitted"):
        model.model_validate({"lock_wait_ms": 1})


def test_unknown_settings_are_returned_in_broker_config_text() -> None:
    changes, unknown = by_field({"maxTopics": "3", "max_topics": "5", "clean_by_force": "false"})

    assert changes == {"max_topics": "5"}
    assert unknown == ["clean_by_force", "maxTopics"]
