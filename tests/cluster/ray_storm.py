"""RayStorm: a storm over a Raft group on Ray, whose replicas are killed and paused."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.checkers import Recorder
from tests.cluster.replica_group import Group
from tests.faults.storm import Storm

MAX_PAUSE_S = 30.0


class RayStorm(Storm):
    """The brokers are the replicas of a group, which Ray restarts. Members are ordinary processes."""

    brokers = ("broker-a",)

    def __init__(self, group: Group, recorder: Recorder, rng: random.Random) -> None:
        """Start nothing: the group is up."""
        self._group = group
        self._resume_s: dict[int, float] = {}  # of each stopped process
        self.outages_s: dict[str, list[float]] = defaultdict(list)
        """Seconds after each harm until a send is acknowledged that began afterwards."""
        super().__init__(group.home, recorder, rng)

    def _start_nodes(self) -> None:
        self.nameserver = self._group.nameserver

    def _harms(self) -> dict[Callable[[], None], int]:
        return {self._join: 4, self._leave: 1, self._stop: 1, self._kill_member: 1, self._harm_replicas: 4}

    def _harm_replicas(self) -> None:
        """Kill or pause one or two replicas; only if all serve."""
        if self._resume_s:
            return
        actors = self._group.actors()
        if any(each["state"] != "serving" for each in actors):
            return
        replicas = [each for each in actors if each["role"] is not None]
        chosen = self._rng.sample(replicas, self._rng.choice((1, 1, 2)))
        signal_number = self._rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        name = "kill" if signal_number == signal.SIGKILL else "pause"
        what = f"{name} of {' and '.join(sorted(each['role'] for each in chosen))}"
        self.outages_s[what].append(self.outage_s(lambda: self._harm(name, signal_number, chosen)))

    def _harm(self, name: str, signal_number: int, chosen: Sequence[Mapping[str, Any]]) -> None:
        for each in chosen:
            pid = int(each["process"])
            if signal_number == signal.SIGSTOP:
                self._resume_s[pid] = time.monotonic() + self._rng.uniform(0, MAX_PAUSE_S)
            os.kill(pid, signal_number)
            self._note(f"{name} of the {each['role']}", each["actor"])

    def _tend(self) -> None:
        super()._tend()
        for pid, resume_s in list(self._resume_s.items()):
            if time.monotonic() >= resume_s:
                self._resume(pid)

    def _resume(self, pid: int) -> None:
        del self._resume_s[pid]
        with suppress(ProcessLookupError):  # Ray may have given it up
            os.kill(pid, signal.SIGCONT)

    def calm(self) -> None:
        for pid in list(self._resume_s):
            self._resume(pid)
        self.until(self._group.serves, "all replicas serve")
        super().calm()
