"""The page `docs/settings.md`, made from the settings models, so that it cannot be outdated.

uv run python -m tests.settings_page > docs/settings.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from actors.broker.broker_settings import BrokerSettings
from actors.wire.settings_text import rocketmq_key
from cluster.control.kinds import KINDS
from cluster.control.topology.topology import ADDRESS_KEYS
from store.common.live_settings import live_names
from store.common.settings_model import SettingsModel
from store.store_settings import StoreSettings

HEAD = """\
# Settings

Generated from the settings models: `uv run python -m tests.settings_page > docs/settings.md`. A test
compares both.

A topology sets broker settings under `broker_settings` (all brokers) or `brokers[].settings` (one broker);
store settings under `store` inside these, or beside the broker's; the others under `nameservers[].settings`,
`rebalancers[].settings`, `gateways[].settings` and `consoles[].settings`, those of the autoscaler under
`autoscale`, and those of lakes under `lakes[]`. RocketMQ's key works as well as ours, so a `broker.conf`
can be used as it is: `raymq up --broker-conf FILE`.

*live*: `raymq up` and RocketMQ's `updateBrokerConfig` change the value in the running process; the change
survives restarts until the next `raymq up`. *restart*: `raymq up` restarts one process at a time.
*topology*: set by a key of the topology itself.
"""


def page() -> str:
    """Return the whole page."""
    tables = [line for title, model in sections() for line in section(title, model)]
    return "\n".join([HEAD, *tables])


def sections() -> list[tuple[str, type[SettingsModel]]]:
    """Return the title and the model of each section: a kind of process, and the store."""
    models = [(kind.name.capitalize(), kind.model) for kind in KINDS.values()]
    found = [(title, model) for title, model in models if issubclass(model, SettingsModel)]
    return [*found, ("Store", StoreSettings)]


def section(title: str, model: type[BaseModel]) -> Iterator[str]:
    """A heading and a table with a row for each setting."""
    yield f"## {title}\n"
    yield "| setting | RocketMQ's key | default | change | |"
    yield "|---|---|---|---|---|"
    live = live_names(model)
    for name, field in model.model_fields.items():
        if model is BrokerSettings and name == "store":
            continue
        key = rocketmq_key(model, name)
        change = "topology" if name in ADDRESS_KEYS else "live" if name in live else "restart"
        cells = (f"`{name}`", f"`{key}`" if key else "", _default(field), change, _words(field.description))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _default(field: Any) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or default is None or default in ([], {}, ()):
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return ", ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def _words(description: str | None) -> str:
    return " ".join((description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
