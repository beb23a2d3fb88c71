"""AutoscalerSettings: the key `autoscale` of a topology."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cluster.autoscale.rules import Rules


class AutoscalerSettings(BaseModel):
    """Settings of the autoscaler of a cluster.

    Attributes:
        rules: When brokers are added and removed; `min` and `max` default to those of the elastic brokers.
        interval_s: Seconds between two decisions.
        drain_timeout_s: Maximum duration of a drain in seconds; the broker stays after it.
        ignore_offline_groups: Remove a broker even if groups without members have unread messages on it. They
            can be read after the broker was started again.
        dry_run: Decide and log, but do not add or remove brokers.
        export_to: Absolute path of a directory on the head node, to which the topics of a drained broker are
            exported before it is removed. None: they are not exported.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Rules
    interval_s: float = Field(5.0, ge=0.1, allow_inf_nan=False)
    drain_timeout_s: float = Field(300.0, gt=0, allow_inf_nan=False)
    ignore_offline_groups: bool = False
    dry_run: bool = False
    export_to: str | None = None

    @field_validator("export_to")
    @classmethod
    def _check_export_to(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_absolute():
            raise ValueError(f"{path} is not an absolute path")
        return path
