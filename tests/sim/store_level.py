"""Schedules on real stores in memory: see docs/simulation.md."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from actors.broker.replication.raft.message_codec import decode_message, encode_message
from actors.raft.members import Member
from actors.raft.messages import Records, RepairBytes
from store.warm import warm_up
from tests.faults.power import PowerLossDisk, track_calls
from tests.sim.checks import Violation
from tests.sim.run import Level
from tests.sim.schedule import Schedule, draw
from tests.sim.simulation import Simulation
from tests.sim.store_log import StoreLog
from tests.sim.store_tables import ends_of_queues


class StoreSimulation(Simulation):
    """A simulation whose logs are real stores below `directory`."""

    def __init__(self, schedule: Schedule, directory: Path, trace: Any, patch: pytest.MonkeyPatch) -> None:
        disks: list[PowerLossDisk] = []
        track_calls(disks, patch)
        super().__init__(schedule, lambda replica: StoreLog(replica, directory, disks), trace=trace)

    def send(self, sender: int, number: int, to: Member, message: Any, group_id: str) -> None:
        """Send what a message is after it was encoded and decoded."""
        decoded: Any = decode_message(encode_message(message))
        if isinstance(decoded, Records | RepairBytes):
            decoded = decoded._replace(records=b"".join([decoded.records]))  # type: ignore[list-item]
        super().send(sender, number, to, decoded, group_id)

    def run(self) -> None:
        """Run the schedule; then close the stores, and compare all their files with their logs."""
        super().run()
        ends = ends_of_queues(self.checks.chosen)
        for replica in self.replicas:
            if replica.node is not None and replica.log.confirmed == replica.log.end:
                found = replica.log.queue_ends() if self._is_member(replica) else ends
                if found != ends:
                    raise Violation(f"the queues of {replica} end at {found} instead of {ends}")
        for replica in self.replicas:
            if replica.node is not None and replica.log.confirmed == replica.log.end:
                replica.log.verify()


@contextmanager
def stores_in_memory() -> Iterator[Level]:
    """Give the level of real stores in a directory in memory; its schedules are shorter."""
    warm_up()
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="raymq-sim-", dir=memory if memory.is_dir() else None) as directory:
        count = 0

        def run(schedule: Schedule, trace: list[str] | None = None) -> Simulation:
            nonlocal count
            count += 1
            place = Path(directory) / str(count)
            place.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                simulation = StoreSimulation(schedule, place, trace, patch)
                try:
                    simulation.run()
                finally:
                    for replica in simulation.replicas:
                        replica.log.close()
            shutil.rmtree(place)
            return simulation

        yield Level("--store ", partial(draw, sends=16, faults=6), run)
