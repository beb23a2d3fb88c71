"""RayStorm: a storm over a Raft group on Ray: replicas are killed and paused, clocks jump, disks are lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tests.checkers import Recorder
from tests.cluster.jumping_clocks import JumpingClocks
from tests.cluster.replica_group import Group
from tests.faults.storm import Storm

MAX_PAUSE_S = 30.0
JUMP_MS = 5_000
"""Less than most timers wait: a message that is delivered early by more than this is found."""


class RayStorm(Storm):
    """The brokers are the replicas of a group, which Ray restarts. Members are ordinary processes."""

    brokers = ("broker-a",)

    def __init__(self, group: Group, clocks: JumpingClocks, recorder: Recorder, rng: random.Random) -> None:
        """Start nothing: the group is up."""
        self._group, self._clocks = group, clocks
        self._jumped: set[int] = set()  # processes whose clocks have jumped
        self._resume_s: dict[int, float] = {}  # of each stopped process
        self.outages_s: dict[str, list[float]] = defaultdict(list)
        """Seconds after each harm until a send is acknowledged that began afterwards."""
        super().__init__(group.home, recorder, rng)

    def _start_nodes(self) -> None:
        self.nameserver = self._group.nameserver

    def _harms(self) -> dict[Callable[[], None], int]:
        return {self._join: 4, self._leave: 1, self._stop: 1, self._kill_member: 1, self._harm_replicas: 4}

    def _harm_replicas(self) -> None:
        """Do harm to one or two replicas; only if all serve."""
        if self._resume_s:
            return
        actors = self._group.actors()
        if any(each["state"] != "serving" for each in actors):
            return
        replicas = [each for each in actors if each["role"] is not None]
        chosen = self._rng.sample(replicas, self._rng.choice((1, 1, 2)))
        name = self._rng.choice(("kill", "kill", "pause", "jump", "loss of the disk"))
        if name in ("jump", "loss of the disk"):
            del chosen[1:]
        what = f"{name} of {' and '.join(sorted(each['role'] for each in chosen))}"
        self.outages_s[what].append(self.outage_s(lambda: self._harm(name, chosen)))
        if name == "loss of the disk":
            self._replace(chosen[0])

    def _harm(self, name: str, chosen: Sequence[Mapping[str, Any]]) -> None:
        for each in chosen:
            pid = int(each["process"])
            match name:
                case "kill":
                    os.kill(pid, signal.SIGKILL)
                    self._clocks.set(pid, 0)  # of the next process with this id
                case "pause":
                    self._resume_s[pid] = time.monotonic() + self._rng.uniform(0, MAX_PAUSE_S)
                    os.kill(pid, signal.SIGSTOP)
                case "jump":
                    # Back to the right time, or off by one jump.
                    others = {-JUMP_MS, 0, JUMP_MS} - {self._clocks.ahead_ms(pid)}
                    self._clocks.set(pid, self._rng.choice(sorted(others)))
                    self._jumped.add(pid)
                case _:
                    os.kill(pid, signal.SIGSTOP)  # it writes nothing meanwhile
                    shutil.rmtree(each["store"])
                    os.kill(pid, signal.SIGKILL)
                    self._clocks.set(pid, 0)
            self._note(f"{name} of the {each['role']}", each["actor"])

    def _replace(self, lost: Mapping[str, Any]) -> None:
        """Replace a replica that has lost its disk, by command."""
        actor, group = lost["actor"], self._group
        self.until(lambda: "has no store" in (group.status(actor)["reason"] or ""), "the failed replica")
        group.run("up", "--join", actor)
        number = actor.rpartition("-")[2]
        change = ("replica", "replace", *self.brokers, number, lost["address"], "--yes")
        group.raymq(*change, "-n", self.nameserver)
        self._note("replace", actor)

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
        for pid in self._jumped:
            self._clocks.set(pid, 0)
        self.until(self._group.serves, "all replicas serve")
        super().calm()
