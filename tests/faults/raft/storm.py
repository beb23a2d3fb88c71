"""RaftStorm: a storm over the replicas of a Raft group, which are killed, paused, and whose clocks jump."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.broker.broker_settings import BrokerSettings
from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from cluster.control.new_stores import NewStore, create_stores
from store.common.clock import SystemClock
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings
from tests.checkers import Recorder
from tests.faults.node import BROKER, STORE, listen_at
from tests.faults.raft.processes import TIMEOUT_MS, described
from tests.faults.raft.sending import check_logs
from tests.faults.storm import MAX_DOWN_S, REPO, Node, Storm
from tests.ports import free_port

NAME = "broker-a"
REPLICAS = range(3)
MAX_PAUSE_S = 30.0


class RaftStorm(Storm):
    """The brokers are three replicas of one Raft group."""

    brokers = (NAME,)

    def __init__(self, root: Path, recorder: Recorder, rng: random.Random, jump_ms: int) -> None:
        """Start the processes. Clocks jump by `jump_ms`."""
        self._jump_ms = jump_ms
        self._settings: list[BrokerSettings] = []
        super().__init__(root, recorder, rng)

    def _listen_host(self, replica: int) -> str:
        return self.host

    def _start_brokers(self) -> list[Node]:
        ids = [uuid.uuid4().hex for _ in REPLICAS]
        self._addresses = [f"{self._listen_host(replica)}:{free_port()}" for replica in REPLICAS]
        self._ahead = [0 for _ in REPLICAS]
        members = [f"{store_id}@{address}" for store_id, address in zip(ids, self._addresses, strict=True)]
        nodes = []
        for replica in REPLICAS:
            settings = BrokerSettings(
                broker_name=NAME,
                nameservers=[self.nameserver],
                rebalancers=self._core[1:],
                store_root=self.stores[replica],
                store=StoreSettings.model_validate({**STORE, "flush": "sync"}),
                replication="raft",
                replica=replica,
                raft_members=members,
                vip_channel=False,
                **listen_at(self._addresses[replica]),
                **BROKER,
            )
            identity = StoreIdentity(settings.cluster_name, NAME, replica)
            store = settings.store.model_dump(mode="json")
            assert create_stores([NewStore(str(settings.store_root), identity, store, ids[replica])]) == []
            self._settings.append(settings)
            nodes.append(self._start_node(f"{NAME}-{replica}", self._command(settings)))
        return nodes

    def _command(self, settings: BrokerSettings) -> list[str]:
        return ["tests.faults.raft.replica", settings.model_dump_json(), str(self._jump_ms)]

    @property
    def stores(self) -> list[Path]:
        """The stores of the replicas."""
        return [self._root / f"{NAME}-{replica}" for replica in REPLICAS]

    def leader(self) -> int:
        """Wait for a leader that serves, and return it."""
        found: list[int] = []

        def leads() -> bool:
            found[:] = [
                each for each, figures in enumerate(self._figures()) if figures.get("role") == "master"
            ]
            return bool(found)

        self.until(leads, "a leader")
        return found[0]

    def await_level(self) -> int:
        """Wait until all replicas have the same log, and all of it is confirmed; return its end."""
        ends: list[set[int]] = []

        def is_level() -> bool:
            figures = self._figures()
            ends[:] = [{each.get(name, -1) for each in figures for name in ("written", "confirmed")}]
            return len(ends[0]) == 1 and -1 not in ends[0]

        self.until(is_level, "equal logs")
        return ends[0].pop()

    def end(self) -> None:
        """Stop all, and require equal logs of the replicas, and queues that match them."""
        self.dismiss()
        end = self.await_level()
        core, *replicas = self._nodes
        for node in replicas:
            node.process.kill()
        self._nodes = [core]
        super().end()
        check_logs(self.stores, [], end)

    def _harms(self) -> dict[Callable[[], None], int]:
        return {self._join: 4, self._leave: 1, self._stop: 1, self._kill_member: 1, self._harm_replicas: 4}

    def _harm_replicas(self) -> None:
        """Kill or pause one or two replicas, or let a clock jump; only if all run."""
        replicas = [self._node(replica) for replica in REPLICAS]
        if not all(node.process.is_ready and not node.resume_s for node in replicas):
            return
        count = self._rng.choice((1, 1, 2))
        chosen = self._rng.sample(REPLICAS, count)
        match self._rng.randrange(3):
            case 0:
                self.kill(*chosen, down_s=self._rng.uniform(0, MAX_DOWN_S))
            case 1:
                for replica in chosen:
                    self.pause(replica, self._rng.uniform(0, MAX_PAUSE_S))
            case 2:
                # Back to the right time, or off by one jump.
                self.jump(chosen[0], self._rng.choice((-1, 0, 1)) - self._ahead[chosen[0]])

    def calm(self) -> None:
        for replica, times in enumerate(self._ahead):
            if times:
                self.jump(replica, -times)
        super().calm()

    # ---- harm ----------------------------------------------------------------------------------------------

    def kill(self, *replicas: int, down_s: float = 0.0) -> None:
        """Kill replicas with SIGKILL; they are restarted after `down_s`."""
        for replica in replicas:
            node = self._node(replica)
            node.process.kill()
            node.restart_s = time.monotonic() + down_s
            self._ahead[replica] = 0
            self._note("kill", node.name)

    def pause(self, replica: int, pause_s: float) -> None:
        """Stop a replica with SIGSTOP, and continue it later."""
        node = self._node(replica)
        os.kill(node.process.running.pid, signal.SIGSTOP)
        node.resume_s = time.monotonic() + pause_s
        self._note(f"pause for {pause_s:.1f} s", node.name)

    def jump(self, replica: int, times: int) -> None:
        """Let the clock of a replica jump forward, or back if `times` is negative."""
        node = self._node(replica)
        self._ahead[replica] += times
        for _ in range(abs(times)):
            os.kill(node.process.running.pid, signal.SIGUSR1 if times > 0 else signal.SIGUSR2)
        self._note(f"jump by {times * self._jump_ms / 1000:g} s", node.name)

    def lose_disk(self, replica: int) -> None:
        """Kill a replica, and delete its store; an empty one is started, which is in no group."""
        node, settings = self._node(replica), self._settings[replica]
        node.process.kill()
        shutil.rmtree(settings.store_root)
        node.command = self._command(settings.model_copy(update={"raft_members": []}))
        self._ahead[replica] = 0
        self._note("delete the disk", node.name)

    def replace(self, replica: int) -> None:
        """Replace the member whose disk is lost by the empty replica, by command."""
        self.until(lambda: self._node(replica).process.is_ready, "the empty replica")
        change = ["replica", "replace", NAME, str(replica), self._addresses[replica], "--yes"]
        command = [sys.executable, "-m", "cluster.cli.main", *change, "--nameserver", self.nameserver]
        with (self._root / "replace.log").open("ab") as log:
            running = subprocess.Popen(command, cwd=REPO, stdout=log, stderr=log)
            self.until(lambda: running.poll() is not None, "the replacement")
        assert running.returncode == 0, (self._root / "replace.log").read_text()

    def _node(self, replica: int) -> Node:
        return next(node for node in self._nodes if node.name == f"{NAME}-{replica}")

    def _figures(self) -> list[dict[str, Any]]:
        """Return the figures of each replica; empty if it does not respond."""

        async def ask() -> list[dict[str, Any]]:
            client = RemotingClient(SystemClock(), limits=RemotingLimits(connect_timeout_ms=TIMEOUT_MS))
            try:
                return [await described(client, each) or {} for each in self._addresses]
            finally:
                await client.close()

        return asyncio.run(ask())
