"""AutoscalerSettings: the key `autoscale` of a topology."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from actors.host.metrics.endpoint import MetricsSettings
from cluster.autoscale.rules import Rules


class AutoscalerSettings(MetricsSettings):
    """Settings of the autoscaler of a cluster."""

    rules: Rules
    """When brokers are added and removed; `min` and `max` default to those of the elastic brokers."""
    interval_s: float = Field(5.0, ge=0.1, allow_inf_nan=False)
    """Seconds between two decisions."""
    drain_timeout_s: float = Field(300.0, gt=0, allow_inf_nan=False)
    """Maximum duration of a drain in seconds; the broker stays after it."""
    ignore_offline_groups: bool = False
    """Remove a broker even if groups without members have unread messages on it. They can be read after the
    broker was started again.
    """
    dry_run: bool = False
    """Decide and log, but do not add or remove brokers."""
    export_to: str | None = None
    """Absolute path of a directory on the head node, to which the topics of a drained broker are exported
    before it is removed.
    """

    @field_validator("export_to")
    @classmethod
    def _check_export_to(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_absolute():
            raise ValueError(f"{path} is not an absolute path")
        return path
