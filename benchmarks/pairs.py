"""A master of RocketMQ with one slave, and the wait for the slave of either side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import orjson

from actors.wire.codes import RequestCode
from tests.compat.build import JavaKit
from tests.compat.peers import Deployment
from tests.compat.replication.slave import ask
from tests.compat.rocketmq import RocketMQ
from tests.eventually import eventually


class RocketMQPair(Deployment):
    """A nameserver, a master and a slave of RocketMQ."""

    def __init__(
        self, kit: JavaKit, root: Path, settings: Mapping[str, str], replication: str, profile: str
    ) -> None:
        """Choose the ports; nothing is started.

        Args:
            kit: the Java installation.
            root: directory of the stores.
            settings: entries of both broker.conf files.
            replication: async (ASYNC_MASTER), or sync (SYNC_MASTER with two in-sync replicas).
            profile: RocketMQ's release, of `tests.compat.build`.
        """
        of_master = {"brokerRole": f"{replication.upper()}_MASTER", "totalReplicas": "2"}
        if replication == "sync":  # without inSyncReplicas a SYNC_MASTER of RocketMQ 5 waits for no slave
            of_master["inSyncReplicas"] = "2"
        self._master = RocketMQ(kit, root / "master", {**settings, **of_master}, profile=profile)
        of_slave = {
            "brokerId": "1", "brokerRole": "SLAVE", "namesrvAddr": self._master.nameserver_address,
        }  # fmt: skip
        self._slave = RocketMQ(kit, root / "slave", {**settings, **of_slave}, profile=profile)

    @property
    def nameserver_address(self) -> str:
        """Address of the nameserver, host:port."""
        return self._master.nameserver_address

    @property
    def broker_address(self) -> str:
        """Address of the master, host:port."""
        return self._master.broker_address

    @property
    def broker_pid(self) -> int:
        """PID of the master."""
        return self._master.broker_pid

    def start(self) -> Self:
        """Start the nameserver, the master and the slave."""
        self._master.start()
        self._slave.start_broker()
        return self

    def stop(self) -> None:
        """Kill all processes."""
        self._slave.stop()
        self._master.stop()


def await_slave(master: str) -> None:
    """Wait until a slave of the broker at `master` (host:port) has its whole log."""

    def is_in_sync() -> bool:
        status = orjson.loads(ask(master, RequestCode.GET_BROKER_HA_STATUS))
        return [each["diff"] for each in status["haConnectionInfo"]] == [0]

    eventually(is_in_sync, "a slave in sync")
