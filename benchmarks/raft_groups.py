"""Three replicas under the sends of a Java client: RayMQ's Raft group, and RocketMQ's two automatic modes.

    raymq        replication: raft, which needs flush: sync
    raymq-single one broker of RayMQ with flush: sync
    dledger      enableDLegerCommitLog, three brokers
    controller   three brokers with a controller in the nameserver; all in-sync replicas acknowledge

The brokers of RocketMQ flush as `--flush` says. All run without Ray, on the same machine. CPU figures are
those of the leader's process.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from actors.broker.broker_settings import BrokerSettings
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import NameserverService, build_nameserver
from cluster.client import Admin, ClientError
from cluster.client.transport.loop_thread import LoopThread
from store.common.clock import SystemClock
from store.ownership.identity import read_name
from store.store_errors import StoreError
from tests.compat.build import JavaKit
from tests.compat.peers import Deployment
from tests.compat.processes import Program
from tests.compat.raymq import BROKER_NAME, REPO, RayMQ
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually
from tests.ports import free_port

REPLICAS = 3
SIDES = ("raymq", "raymq-single", "dledger", "controller")
SETTLE_S = 20
"""RocketMQ's brokers elect, and report to each other, within this time."""
FLOORS = {"dledger": 4.0, "controller": 4.0, "raymq-single": 0.35}
"""Least rate of `raymq` divided by that of each other side."""


class Group(Deployment):
    """Three brokers of which one is the master at present; `programs` are their processes by address."""

    nameserver_address = ""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    @property
    def broker_address(self) -> str:
        """Address of the master, host:port."""
        with Admin(self.nameserver_address) as admin:

            def master() -> str | None:
                with suppress(ClientError):
                    return admin.brokers().get(BROKER_NAME)
                return None

            found = eventually(master, "a master")
        assert found is not None
        return found

    @property
    def broker_pid(self) -> int:
        """PID of the master."""
        return self.programs[self.broker_address].pid

    def stop(self) -> None:
        """Kill all brokers."""
        for program in self.programs.values():
            if program.is_running:
                program.kill()


class RaftGroup(Group):
    """A Raft group of RayMQ, with a nameserver in this process."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root
        self._ports = [free_port() for _ in range(REPLICAS)]
        self._thread = LoopThread("nameserver")
        self._nameserver: NameserverService | None = None

    def start(self) -> Self:
        """Start the nameserver, create the stores, and start the replicas."""
        settings = NameserverSettings.model_validate({"listen_port": 0})
        self._nameserver = nameserver = build_nameserver(settings, SystemClock())
        self._thread.run(nameserver.start())
        self.nameserver_address = nameserver.address
        ids = [self._created(replica) for replica in range(REPLICAS)]
        for replica, port in enumerate(self._ports):
            text = self._settings(replica, ids).model_dump_json()
            command = [sys.executable, "-m", "tests.faults.broker_process", text]
            log = self._root / f"{replica}.log"
            self.programs[f"127.0.0.1:{port}"] = Program(command, log, cwd=REPO)
        return self

    def stop(self) -> None:
        """Kill the replicas, and stop the nameserver."""
        super().stop()
        if self._nameserver is not None:
            self._thread.run(self._nameserver.stop())
            self._nameserver = None

    def _created(self, replica: int) -> str:
        settings = self._settings(replica, [""] * REPLICAS)
        with suppress(StoreError):  # the store is created, and its id must be put into raft_members
            asyncio.run(BrokerService(settings, SystemClock()).start())
        name = read_name(settings.store_root)
        assert name is not None
        return name.store_id

    def _settings(self, replica: int, ids: Sequence[str]) -> BrokerSettings:
        members = [f"{each}@127.0.0.1:{port}" for each, port in zip(ids, self._ports, strict=True)]
        made: dict[str, Any] = {
            "broker_name": BROKER_NAME, "listen_port": self._ports[replica], "vip_channel": False,
            "nameservers": [self.nameserver_address], "store_root": self._root / str(replica),
            "replication": "raft", "replica": replica, "raft_members": members, "store": {"flush": "sync"},
        }  # fmt: skip
        return BrokerSettings.model_validate(made)


class RocketMQGroup(Group):
    """Three brokers of RocketMQ that elect their master."""

    def __init__(
        self, kit: JavaKit, root: Path, settings: Mapping[str, str], profile: str, mode: str
    ) -> None:
        """Choose the ports; `mode` is "dledger" or "controller"."""
        super().__init__()
        self._controller = f"127.0.0.1:{free_port()}"
        peers = ";".join(f"n{each}-127.0.0.1:{free_port()}" for each in range(REPLICAS))
        self._brokers: list[RocketMQ] = []
        for replica in range(REPLICAS):
            own = {"namesrvAddr": self._brokers[0].nameserver_address} if replica else {}
            of_mode = (
                {
                    "enableDLegerCommitLog": "true", "dLegerGroup": BROKER_NAME, "dLegerPeers": peers,
                    "dLegerSelfId": f"n{replica}",
                }
                if mode == "dledger"
                else {
                    "brokerId": "-1", "brokerRole": "SLAVE", "enableControllerMode": "true",
                    "controllerAddr": self._controller, "allAckInSyncStateSet": "true",
                    "totalReplicas": str(REPLICAS), "minInSyncReplicas": "1",
                }
            )  # fmt: skip
            both = {**settings, **of_mode, **own}
            where = root / str(replica)
            is_controller = mode == "controller" and not replica
            broker = (
                Controller(kit, where, both, profile, self._controller)
                if is_controller
                else RocketMQ(kit, where, both, profile=profile)
            )
            self._brokers.append(broker)

    def start(self) -> Self:
        """Start the nameserver and the brokers, and wait until they replicate."""
        first = self._brokers[0]
        self.nameserver_address = first.nameserver_address
        first.start_nameserver()
        for each in self._brokers:
            each.start_broker()
            assert each.broker is not None
            self.programs[each.broker_address] = each.broker
        time.sleep(SETTLE_S)
        return self

    def stop(self) -> None:
        """Kill all processes."""
        for each in self._brokers:
            each.stop()


class Controller(RocketMQ):
    """A broker whose nameserver is the controller, too."""

    def __init__(
        self, kit: JavaKit, root: Path, settings: Mapping[str, str], profile: str, controller: str
    ) -> None:
        """`controller` is the address at which the controller listens."""
        super().__init__(kit, root, settings, profile=profile)
        self._controller = controller

    def nameserver_conf(self) -> dict[str, str]:
        """Return the entries of namesrv.conf."""
        return {
            **super().nameserver_conf(),
            "enableControllerInNamesrv": "true",
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": f"n0-{self._controller}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.root / "controller"),
        }


def peer_of(side: str, kit: JavaKit, root: Path, flush: str, profile: str) -> Deployment:
    """Return the deployment of one of SIDES; nothing is started."""
    if side == "raymq":
        return RaftGroup(root)
    if side == "raymq-single":
        return RayMQ(root, {"flushDiskType": "SYNC_FLUSH"})
    return RocketMQGroup(kit, root, {"flushDiskType": f"{flush.upper()}_FLUSH"}, profile, side)


def print_rates(rates: Mapping[str, Sequence[float]], print_line: Callable[[str], None]) -> None:
    """Print the median rate of each side, and the ratios with their floors, as one line of JSON."""
    medians = {side: round(statistics.median(found)) for side, found in rates.items() if found}
    ratios = {
        f"raymq/{side}": {"ratio": round(medians["raymq"] / medians[side], 3), "floor": floor}
        for side, floor in FLOORS.items()
        if side in medians and "raymq" in medians
    }
    print_line(json.dumps({"messages_per_s": medians, "ratios": ratios}))
