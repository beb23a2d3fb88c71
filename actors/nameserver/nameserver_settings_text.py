"""A nameserver's settings as flat texts (`actors.remoting.settings_text`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.nameserver.nameserver_settings import NameserverSettings
from actors.remoting.settings_text import changes_by_field, settings_as_texts

# What RocketMQ's nameserver tells of itself and no setting of ours decides.
_ALWAYS_SO = {
    "clusterTest": "false",
    "enableAllTopicList": "true",
    "enableControllerInNamesrv": "false",
    "enableTopicList": "true",
    "productEnvName": "center",
    "returnOrderTopicConfigToBroker": "true",
    "supportActingMaster": "false",
}


def by_field(settings: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Texts by key as changes by field (`store.live_settings.with_changes`), and the keys unknown."""
    return changes_by_field(NameserverSettings, settings)


def as_properties(settings: NameserverSettings) -> dict[str, str]:
    """All settings as texts, sorted by their keys, with what is always so."""
    return dict(sorted((_ALWAYS_SO | settings_as_texts(settings)).items()))
