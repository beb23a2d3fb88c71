"""Rules: the limits and thresholds by which the number of brokers follows the load."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(gt=0, le=100)]


class Rules(BaseModel):
    """The rules of one group of elastic brokers. `decide` applies them.

    Attributes:
        min: Minimum number of brokers.
        max: Maximum number of brokers.
        throughput_per_broker: Messages per second that one broker shall receive at most. Set it below the
            rate at which a broker is saturated, because a saturated broker measures no higher rate.
        lag_seconds: Seconds that consumers need for the unconsumed messages of a broker, above which brokers
            are added. None: off.
        disk_percent: Mean disk usage of the brokers above which brokers are added. None: off.
        cpu_percent: Mean CPU usage of the brokers above which brokers are added. None: off.
        hysteresis: Brokers are removed only if each figure would then be below its threshold by this
            fraction, so that the same load does not add them again.
        cool_down_s: Seconds after a change before brokers are removed, or added because of lag, disk or CPU.
            A rise of the measured throughput adds brokers without this delay.
        step: Maximum number of brokers that one decision adds or removes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: int = Field(1, ge=1)
    max: int = Field(ge=1)
    throughput_per_broker: Positive
    lag_seconds: Positive | None = None
    disk_percent: Percent | None = None
    cpu_percent: Percent | None = None
    hysteresis: float = Field(0.2, ge=0, lt=1)
    cool_down_s: float = Field(60, ge=0, allow_inf_nan=False)
    step: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is greater than max {self.max}: lower min or raise max")
        if self.step > max(self.max - self.min, 1):
            raise ValueError(
                f"step {self.step} exceeds max - min = {self.max - self.min}: lower step, or raise max"
            )
        return self
