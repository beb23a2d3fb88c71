"""Settings of the consumers: completed from the arguments of their constructors."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from cluster.client.config import ConsumerConfig, Nameservers
from cluster.client.errors import ConfigInvalid
from cluster.client.namespaces import Namespace
from cluster.client.pop.pop_config import LiteConfig, PopConfig
from store.message.validate import check_group
from store.store_errors import MessageInvalid

ConfigT = TypeVar("ConfigT", bound=ConsumerConfig | PopConfig | LiteConfig)


def group_config(
    consumer: str, given: ConfigT | None, default: ConfigT, nameservers: Nameservers | None, group: str | None
) -> ConfigT:
    """Return `given`, or else `default`, with `nameservers` and `group` replaced if they are given.

    `consumer` names the kind of consumer in errors. Raises ConfigInvalid before any connection is opened.
    """
    kind = type(default)
    config = default if given is None else given
    if not isinstance(config, kind):
        raise ConfigInvalid(f"config is a {type(config).__name__}: {consumer} needs a {kind.__name__}")
    if nameservers is not None:
        config = replace(config, nameservers=nameservers)
    if group is not None:
        config = replace(config, group=group)
    config.addresses()
    config = replace(config, group=Namespace(config.namespace).wrap(config.group))
    try:
        check_group(config.group)
    except MessageInvalid as error:
        raise ConfigInvalid(f"consumer group: {error}") from error
    return config
