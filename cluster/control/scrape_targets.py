"""The file of a cluster for Prometheus' file discovery: the addresses of the metrics of its processes.

    <home>/prometheus-targets.json
    [{"targets": ["127.0.0.1:11911"], "labels": {"raymq_actor": "broker-a-0"}}]

`raymq up` writes it, `raymq drain` and `raymq down` remove addresses. Brokers that the autoscaler adds are in
it from the next `raymq up` on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.host.metrics.endpoint import AUTOSCALER_PORT, LAKE_PORT, OFF, MetricsSettings, default_port
from cluster.control.launch_errors import LaunchFailed
from cluster.control.specs import ActorSpec
from store.message.hosts import join_address

FILE_NAME = "prometheus-targets.json"
ACTOR_LABEL = "raymq_actor"
_STANDS_FOR = {"autoscale": AUTOSCALER_PORT, "lakes": LAKE_PORT}
_WILDCARDS = ("0.0.0.0", "::")


def metrics_address(spec: ActorSpec) -> str | None:
    """Return `host:port` of the metrics of a process; None if it has none, or on a port that is not known."""
    if not issubclass(spec.kind.model, MetricsSettings):
        return None
    names = MetricsSettings.model_fields.keys() & spec.settings.keys()
    settings = MetricsSettings.model_validate({name: spec.settings[name] for name in names})
    port = settings.metrics_port
    if port is None:
        port = default_port(spec.listen[1] if spec.kind.probe else _STANDS_FOR[spec.kind.key])
    if port in (0, OFF):
        return None
    host = spec.advertised[0] if settings.metrics_host in _WILDCARDS else settings.metrics_host
    return join_address(host, port)


def targets_of(specs: Sequence[ActorSpec]) -> list[dict[str, Any]]:
    """Return the content of the file."""
    addresses = [(spec.name, metrics_address(spec)) for spec in specs]
    return [
        {"targets": [address], "labels": {ACTOR_LABEL: name}}
        for name, address in addresses
        if address is not None
    ]


def write_targets(home: Path, specs: Sequence[ActorSpec]) -> None:
    """Replace the file of a cluster. Raises OSError."""
    _write(home / FILE_NAME, targets_of(specs))


def remove_target(home: Path, actor: str) -> None:
    """Remove the address of a process that was stopped for good.

    Raises:
        LaunchFailed: the file is damaged.
        OSError: it cannot be read or written.
    """
    path = home / FILE_NAME
    if not path.exists():
        return
    try:
        targets = json.loads(path.read_bytes())
        others = [each for each in targets if each["labels"][ACTOR_LABEL] != actor]
    except (ValueError, LookupError, TypeError) as error:
        raise LaunchFailed(
            f"{actor} was stopped, but {path} still lists it, because the file is damaged ({error!r}): "
            "`raymq up` writes it again"
        ) from error
    _write(path, others)


def _write(path: Path, targets: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(targets, indent=2) + "\n")
    partial.replace(path)
