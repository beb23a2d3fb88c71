"""Load profiles: the rate of messages that the producers of an experiment offer, as a function of time.

kind     shape
step     a constant rate from each given time on
sine     between a low and a high rate; begins at the low one
burst    a base rate with bursts at a regular interval
replay   rates from a CSV file with the columns time_s and rate_per_s
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Period = Annotated[float, Field(gt=0, allow_inf_nan=False)]
COLUMNS = ("time_s", "rate_per_s")


class _Profile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class ProfileStep(_Profile):
    """A constant rate from a time on."""

    at_s: Seconds
    rate_per_s: Rate


class StepProfile(_Profile):
    """Constant rates that begin at given times; the first one at 0."""

    kind: Literal["step"]
    steps: tuple[ProfileStep, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.steps:
            raise ValueError("steps is empty: add at least a step with at_s 0")
        if self.steps[0].at_s != 0:
            raise ValueError(f"the first step begins at {self.steps[0].at_s} s: let it begin at 0")
        for before, after in pairwise(self.steps):
            if after.at_s <= before.at_s:
                raise ValueError(f"at_s {after.at_s} follows {before.at_s}: list the steps in order of at_s")
        return self

    def rate_per_s(self, time_s: float) -> float:
        """Return the offered rate at `time_s`."""
        index = bisect_right(self.steps, time_s, key=lambda step: step.at_s) - 1
        return self.steps[max(index, 0)].rate_per_s


class SineProfile(_Profile):
    """A sine between `low_per_s`, at time 0, and `high_per_s`, half a period later."""

    kind: Literal["sine"]
    low_per_s: Rate
    high_per_s: Rate
    period_s: Period

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low_per_s > self.high_per_s:
            raise ValueError(
                f"low_per_s {self.low_per_s} is greater than high_per_s {self.high_per_s}: exchange them"
            )
        return self

    def rate_per_s(self, time_s: float) -> float:
        """Return the offered rate at `time_s`."""
        part = (1 - math.cos(2 * math.pi * time_s / self.period_s)) / 2
        return self.low_per_s + (self.high_per_s - self.low_per_s) * part


class BurstProfile(_Profile):
    """`base_per_s`, and `burst_per_s` during the last `burst_s` seconds of each interval of `every_s`."""

    kind: Literal["burst"]
    base_per_s: Rate
    burst_per_s: Rate
    every_s: Period
    burst_s: Period

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.burst_s >= self.every_s:
            raise ValueError(
                f"burst_s {self.burst_s} is not less than every_s {self.every_s}: "
                "shorten the bursts or lengthen the interval"
            )
        return self

    def rate_per_s(self, time_s: float) -> float:
        """Return the offered rate at `time_s`."""
        return self.burst_per_s if time_s % self.every_s >= self.every_s - self.burst_s else self.base_per_s


@dataclass(frozen=True)
class RateSeries:
    """The rates of a CSV file; each one is valid until the time of the next."""

    file: Path
    times_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]


def read_rates(file: Path) -> RateSeries:
    """Read a CSV file with the columns time_s and rate_per_s.

    Raises ValueError with the file, the line and a remedy if the file cannot be read or a row is invalid.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = csv.DictReader(stream)
            missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
            if missing:
                raise ValueError(
                    f"{file}:1: column {missing[0]} is missing: use the columns {', '.join(COLUMNS)}"
                )
            pairs = [_pair(file, rows.line_num, row) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{file}: cannot be read as CSV: {error}") from None
    if not pairs:
        raise ValueError(f"{file}: there is no row: add at least one row with a time and a rate")
    for number, (before, after) in enumerate(pairwise(pairs), 3):
        if after[0] <= before[0]:
            raise ValueError(
                f"{file}:{number}: time_s {after[0]} follows {before[0]}: sort the rows by time_s"
            )
    return RateSeries(file, tuple(time for time, _ in pairs), tuple(rate for _, rate in pairs))


def _pair(file: Path, line: int, row: dict[str, str]) -> tuple[float, float]:
    values = []
    for column in COLUMNS:
        try:
            value = float(row[column])
        except (TypeError, ValueError):
            raise ValueError(f"{file}:{line}: {column} is {row[column]!r}: give a number") from None
        if not 0 <= value < math.inf:
            raise ValueError(f"{file}:{line}: {column} is {row[column]}: give a finite number of 0 or more")
        values.append(value)
    return values[0], values[1]


def _load_rates(value: object, info: ValidationInfo) -> RateSeries:
    if isinstance(value, RateSeries):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not the name of a CSV file")  # noqa: TRY004 -- pydantic's convention
    return read_rates(Path((info.context or {}).get("directory", ".")) / value)


class ReplayProfile(_Profile):
    """The rates of a CSV file, whose path is relative to the experiment's file."""

    kind: Literal["replay"]
    file: Annotated[RateSeries, BeforeValidator(_load_rates)]

    def rate_per_s(self, time_s: float) -> float:
        """Return the offered rate at `time_s`: that of the last row at or before it, else 0."""
        index = bisect_right(self.file.times_s, time_s) - 1
        return self.file.rates_per_s[index] if index >= 0 else 0.0


Profile = Annotated[StepProfile | SineProfile | BurstProfile | ReplayProfile, Field(discriminator="kind")]
PROFILES: dict[str, type[StepProfile | SineProfile | BurstProfile | ReplayProfile]] = {
    "step": StepProfile,
    "sine": SineProfile,
    "burst": BurstProfile,
    "replay": ReplayProfile,
}
"""The class of each kind of profile."""
