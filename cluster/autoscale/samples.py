"""Samples: what the controller measured of the brokers at one time. Decisions are functions of samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

BrokerState = Literal["starting", "running", "draining"]
STARTING: BrokerState = "starting"
RUNNING: BrokerState = "running"
DRAINING: BrokerState = "draining"


class BrokerSample(NamedTuple):
    """The figures of one broker at the time of a sample.

    Attributes:
        name: Name of the broker.
        state: `starting` until clients can send to it, `draining` once it accepts no more messages.
        in_per_s: Messages received per second since the previous sample.
        out_per_s: Messages delivered per second since the previous sample.
        lag_messages: Stored messages that a consumer group has not consumed; of the slowest group.
        lag_seconds: Seconds that the consumers need for them at their present rate.
        disk_percent: Used part of the disk of the store.
        cpu_percent: Used part of the CPU that the broker may use.
    """

    name: str
    state: BrokerState = RUNNING
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    lag_messages: float = 0.0
    lag_seconds: float = 0.0
    disk_percent: float = 0.0
    cpu_percent: float = 0.0


@dataclass(frozen=True)
class FleetSample:
    """The figures of all brokers at one time.

    The sums and means are computed at first use and cached, because each decision reads many samples.

    Attributes:
        time_s: Monotonic time of the sample, in seconds.
        brokers: One entry for each broker that exists or was requested.
    """

    time_s: float
    brokers: tuple[BrokerSample, ...]

    @cached_property
    def running(self) -> int:
        """The number of brokers to which clients can send."""
        return sum(broker.state == RUNNING for broker in self.brokers)

    @cached_property
    def in_per_s(self) -> float:
        """Messages that all brokers received, per second."""
        return sum(broker.in_per_s for broker in self.brokers)

    @cached_property
    def out_per_s(self) -> float:
        """Messages that all brokers delivered, per second."""
        return sum(broker.out_per_s for broker in self.brokers)

    @cached_property
    def lag_seconds(self) -> float:
        """The highest lag of a broker, in seconds. A draining broker counts, because its data is read too."""
        return max((broker.lag_seconds for broker in self.brokers), default=0.0)

    @cached_property
    def lag_messages(self) -> float:
        """The number of unconsumed messages of all brokers."""
        return sum(broker.lag_messages for broker in self.brokers)

    @cached_property
    def disk_percent(self) -> float:
        """The mean disk usage of the running brokers."""
        return self._mean([broker.disk_percent for broker in self.brokers if broker.state == RUNNING])

    @cached_property
    def cpu_percent(self) -> float:
        """The mean CPU usage of the running brokers."""
        return self._mean([broker.cpu_percent for broker in self.brokers if broker.state == RUNNING])

    @staticmethod
    def _mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0
