"""FakeFleet: the brokers of a controller, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.autoscale.controller import BrokerUnavailable, Observed
from cluster.autoscale.samples import BrokerSample
from cluster.control.drain import DrainProgress, GroupLag


@dataclass
class FakeFleet:
    """Brokers in memory. `offered_per_s` is shared by those that accept messages."""

    offered_per_s: float = 10.0
    serving: dict[str, bool] = field(default_factory=lambda: {"b-1": True})
    groups: Sequence[GroupLag] = ()
    boots: bool = True
    unavailable: set[str] = field(default_factory=set)
    misplaced: set[str] = field(default_factory=set)
    ticks_of_export: int = 0
    calls: list[str] = field(default_factory=list)
    draining: dict[str, str] = field(default_factory=dict)

    def observe(self) -> Sequence[Observed]:
        writable = [name for name, serves in self.serving.items() if serves and name not in self.draining]
        rates = {name: self.offered_per_s / len(writable) for name in writable}
        return [
            Observed(
                BrokerSample(name, in_per_s=rates.get(name, 0.0)),
                is_serving=serves,
                reason="" if serves else "pending: no node",
                is_draining=name in self.draining,
                is_misplaced=name in self.misplaced,
            )
            for name, serves in self.serving.items()
        ]

    def create(self, existing: Sequence[str]) -> str:
        name = next(f"b-{number}" for number in range(1, 9) if f"b-{number}" not in existing)
        self._called("create", name)
        self.serving[name] = self.boots
        return name

    def equip(self, name: str) -> None:
        self._called("equip", name)

    def drain(self, name: str, step: str) -> DrainProgress:
        self._called(step, name)
        self.draining[name] = step
        if step == "cancel":
            del self.draining[name]
        return DrainProgress(100.0, 7, 1, self.groups)

    def export(self, name: str) -> bool:
        self._called("export", name)
        self.ticks_of_export -= 1
        return self.ticks_of_export < 0

    def remove(self, name: str, unread: Mapping[str, int] | None) -> None:
        self._called("remove" if unread is not None else "remove unused", name)
        self.draining.pop(name, None)
        del self.serving[name]

    def replace(self, name: str) -> None:
        self._called("replace", name)
        self.misplaced.discard(name)

    def _called(self, call: str, name: str) -> None:
        if call in self.unavailable:
            raise BrokerUnavailable(f"{name} does not respond")
        self.calls.append(f"{call} {name}")
