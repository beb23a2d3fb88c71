"""Storm: the processes of a cluster and of its consumer groups, which are stopped and killed at random."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from cluster.client import ClientError
from tests.checkers import Event, Recorder, load
from tests.eventually import LIMIT_S, eventually
from tests.faults.member import LEASE_MS
from tests.ports import free_port

REPO = Path(__file__).parent.parent.parent
TOPIC = "storm"
NODE = "tests.faults.node"
CORE, BROKERS = "core", ("broker-a", "broker-b")
MEMBERS = {"concurrent": 3, "ordered": 3, "broadcasting": 2}
"""The largest number of members of each group; the name of a group is its model."""
MAX_PAUSE_S = 2.0
MAX_DOWN_S = 3.0
MAX_STOP_S = 2.5 * LEASE_MS / 1000


@dataclass
class Process:
    """A process, which writes READY to its log."""

    running: subprocess.Popen[bytes]
    log: Path

    @property
    def is_ready(self) -> bool:
        return self.running.poll() is None and b"READY\n" in self.log.read_bytes()

    @property
    def is_stopped(self) -> bool:
        return bool(psutil.Process(self.running.pid).status() == psutil.STATUS_STOPPED)

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()


@dataclass
class Node:
    """A server, or a killed one until its restart, or a stopped one until `resume_s`."""

    name: str
    command: Sequence[str]
    process: Process
    restart_s: float = 0.0
    resume_s: float = 0.0


@dataclass
class Member:
    """A member of a group. It is to be stopped for `stop_s`; if it is stopped, until `resume_s`."""

    group: str
    name: str
    process: Process
    stop_s: float = 0.0
    resume_s: float = 0.0
    is_leaving: bool = False


class Storm:
    """Starts the processes in `root`. `events` is the history of all of them, as far as it was read."""

    brokers: Sequence[str] = BROKERS
    host = "127.0.0.1"
    """Where the nameserver and the rebalancer listen."""

    def __init__(self, root: Path, recorder: Recorder, rng: random.Random) -> None:
        assert recorder.path is not None
        self._root, self._recorder, self._rng = root, recorder, rng
        self._began_s = time.monotonic()
        self._history = recorder.path.open("rb")
        self._incomplete_line = b""
        self.events: list[Event] = []
        self.acknowledged: set[str] = set()
        self.read: dict[str, set[str]] = defaultdict(set)
        self.harms: Counter[str] = Counter()
        self._members: list[Member] = []
        self._started = 0
        self.nameserver = ""
        self._nodes: list[Node] = []
        self._start_nodes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [each.process for each in self._members] + [each.process for each in self._nodes]:
            process.kill()

    def _start_nodes(self) -> None:
        """Start the servers, and set `nameserver`."""
        self._core = [f"{self.host}:{free_port()}" for _ in range(2)]
        self.nameserver = self._core[0]
        self._nodes.append(self._start_node(CORE, [NODE, str(self._root), *self._core]))
        self._nodes += self._start_brokers()

    def _start_brokers(self) -> list[Node]:
        common = [NODE, str(self._root), *self._core]
        return [self._start_node(name, [*common, name, str(free_port(-2))]) for name in self.brokers]

    def rage(self, duration_s: float) -> None:
        """Do harm at random."""
        pause, end_s = threading.Event(), time.monotonic() + duration_s
        harms = self._harms()
        while time.monotonic() < end_s:
            self._rng.choices(list(harms), list(harms.values()))[0]()
            self._tend()
            pause.wait(self._rng.uniform(0, MAX_PAUSE_S))

    def calm(self) -> None:
        """Undo the harm, and fill all groups."""
        for node in self._nodes:
            node.restart_s = 0
            node.resume_s = min(node.resume_s, 0.1)
        for member in self._members:
            member.stop_s = min(member.stop_s, 0.1)
        self.until(
            lambda: not any(member.is_leaving for member in self._members), "the end of leaving members"
        )
        self.fill()

    def fill(self) -> None:
        """Start members until all groups are full."""
        while self._groups_with_room():
            self._join()

    def dismiss(self) -> None:
        """Let all members leave."""
        for member in self._members:
            self._close_input(member)
        self.until(lambda: not self._members, "the end of all members")

    def end(self) -> None:
        """Let all members leave, then stop the servers."""
        self.dismiss()
        for node in reversed(self._nodes):
            node.process.running.terminate()
            assert node.process.running.wait(LIMIT_S) == 0, f"{node.name} has failed: see its log"
        self._read_history()
        assert not self._incomplete_line

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition; errors of clients are expected while servers restart."""

        def is_met() -> object:
            self._tend()
            self._read_history()
            try:
                return condition()
            except ClientError:
                return False

        eventually(is_met, what)

    def outage_s(self, harm: Callable[[], None]) -> float:
        """Do harm; return the seconds until a send is acknowledged that began afterwards."""
        harm()
        began_s = time.monotonic()
        self._read_history()
        first = len(self.events)

        def is_acknowledged() -> bool:
            begun = set()
            for event in self.events[first:]:
                if event.op == "send" and event.type == "invoke":
                    begun.add(event.value)
                elif event.op == "send" and event.type == "ok" and event.value in begun:
                    return True
            return False

        self.until(is_acknowledged, "a send after the harm")
        return time.monotonic() - began_s

    def _harms(self) -> dict[Callable[[], None], int]:
        """Return what may be done at random, with its weight."""
        return {self._join: 4, self._leave: 1, self._stop: 2, self._kill_member: 2, self._kill_node: 1}

    # ---- harm ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if not (groups := self._groups_with_room()):
            return
        group = self._rng.choice(groups)
        name = f"{group}-{self._started}"
        if group == "broadcasting":  # a new process uses the offsets of the one that has left
            names = (f"{group}-{number}" for number in range(MEMBERS[group]))
            name = next(name for name in names if all(name != each.name for each in self._members))
        # With one thread, no other call of a member is about to begin when it stops itself during a call.
        threads = "1" if group == "ordered" else "4"
        history = str(self._recorder.path)
        command = ["tests.faults.member", self.nameserver, group, TOPIC, history, group, name, threads]
        self._members.append(Member(group, name, self._start(name, command)))
        self._note("join", name)

    def _leave(self) -> None:
        if member := self._any_member():
            self._close_input(member)
            self._note("leave", member.name)

    def _stop(self) -> None:
        if member := self._any_member():
            member.stop_s = self._rng.uniform(0, MAX_STOP_S)
            if member.group == "ordered":  # it stops itself during a call
                assert member.process.running.stdin is not None
                member.process.running.stdin.write(b"stop\n")
                member.process.running.stdin.flush()
            else:
                os.kill(member.process.running.pid, signal.SIGSTOP)
            self._note(f"stop for {member.stop_s:.1f} s", member.name)

    def _kill_member(self) -> None:
        if member := self._any_member():
            # Stopped first, so that it does nothing after the line in the history.
            os.kill(member.process.running.pid, signal.SIGSTOP)
            eventually(lambda: member.process.is_stopped, "the stop")
            self._recorder.kill(member.name)
            member.process.kill()
            self._members.remove(member)
            self._note("kill", member.name)

    def _kill_node(self) -> None:
        # One at a time: on a busy machine a restart takes longer than the time between two kills.
        if all(node.process.is_ready for node in self._nodes):
            node = self._rng.choice(self._nodes)
            node.process.kill()
            node.restart_s = time.monotonic() + self._rng.uniform(0, MAX_DOWN_S)
            self._note("kill", node.name)

    def _tend(self) -> None:
        """Restart servers and continue members when it is time; fail if a process has ended by itself."""
        now_s = time.monotonic()
        for number, node in enumerate(self._nodes):
            code = node.process.running.poll()
            if code is not None:
                assert code == -signal.SIGKILL, f"{node.name} has failed: see its log"
                if now_s >= node.restart_s:
                    self._nodes[number] = self._start_node(node.name, node.command)
            elif node.resume_s and now_s >= node.resume_s:
                os.kill(node.process.running.pid, signal.SIGCONT)
                node.resume_s = 0
        for member in list(self._members):
            code = member.process.running.poll()
            if code is not None:
                assert (code, member.is_leaving) == (0, True), f"{member.name} has failed: see its log"
                self._members.remove(member)
            elif member.stop_s and member.process.is_stopped:
                member.resume_s = member.resume_s or now_s + member.stop_s
                if now_s >= member.resume_s:
                    os.kill(member.process.running.pid, signal.SIGCONT)
                    member.stop_s = member.resume_s = 0

    # ---- processes -----------------------------------------------------------------------------------------

    def _groups_with_room(self) -> list[str]:
        members = Counter(member.group for member in self._members)
        return [group for group, most in MEMBERS.items() if members[group] < most]

    def _any_member(self) -> Member | None:
        """Return a member that is ready, and neither leaving nor stopped."""
        members = [
            each
            for each in self._members
            if each.process.is_ready and not each.is_leaving and not each.stop_s
        ]
        return self._rng.choice(members) if members else None

    def _close_input(self, member: Member) -> None:
        assert member.process.running.stdin is not None
        member.process.running.stdin.close()
        member.is_leaving = True

    def _start_node(self, name: str, command: Sequence[str]) -> Node:
        return Node(name, command, self._start(name, command))

    def _start(self, name: str, command: Sequence[str]) -> Process:
        self._started += 1
        path = self._root / f"{self._started}-{name}.log"
        with path.open("xb") as log:
            running = subprocess.Popen(
                [*self._enter(name), sys.executable, "-m", *command],
                cwd=REPO,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        return Process(running, path)

    def _enter(self, name: str) -> list[str]:
        """Return the words of a command that runs a process in a place of its own."""
        return []

    def _note(self, harm: str, name: str) -> None:
        kind = "member" if name.rpartition("-")[0] in MEMBERS else "server"
        self.harms[f"{harm.split()[0]} {kind}"] += 1
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s: {harm} {name}\n")

    def _read_history(self) -> None:
        *lines, self._incomplete_line = (self._incomplete_line + self._history.read()).split(b"\n")
        events = load(lines)
        assert len(events) == len(lines), lines[len(events)]
        self.events += events
        for event in events:
            if event.op == "read":
                self.read[event.group].add(event.value)
            elif event.op == "send" and event.type == "ok":
                self.acknowledged.add(event.value)
