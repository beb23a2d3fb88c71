"""RayStorm: a storm over a Raft group on Ray, whose replicas are killed and paused."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

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
        is_kill = self._rng.random() < 0.5
        for each in self._rng.sample(replicas, self._rng.choice((1, 1, 2))):
            pid = int(each["process"])
            if not is_kill:
                self._resume_s[pid] = time.monotonic() + self._rng.uniform(0, MAX_PAUSE_S)
            os.kill(pid, signal.SIGKILL if is_kill else signal.SIGSTOP)
            self._note("kill replica" if is_kill else "pause replica", f"{each['actor']}, {each['role']}")

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
