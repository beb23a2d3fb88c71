"""AutoscalerSettings: the key `autoscale` of a topology."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

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
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Rules
    interval_s: float = Field(5.0, ge=0.1, allow_inf_nan=False)
    drain_timeout_s: float = Field(300.0, gt=0, allow_inf_nan=False)
    ignore_offline_groups: bool = False
    dry_run: bool = False
