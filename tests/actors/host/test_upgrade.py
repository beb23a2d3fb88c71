"""A cluster of the version before processes proved themselves is upgraded, process by process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from actors.gateway.proto.definition_pb2 import Code
from actors.transport.client import RemotingClient
from actors.wire.admin_headers import UserHeader
from actors.wire.bodies.access import UserInfo
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.remoting_errors import RemotingError
from actors.wire.signing import Signer
from store.common.clock import SystemClock
from store.ownership.identity import read_name
from tests.actors.broker.brokers import SMALL_STORE, TIMEOUT_MS
from tests.actors.broker.core.auth.access_peers import INNER, inner_file
from tests.actors.gateway.gateways import GrpcClient, message
from tests.actors.gateway.test_gateway_access import signed
from tests.eventually import eventually_async
from tests.ports import free_port

REPO = Path(__file__).parents[3]
OLDER = "7a30149b"
"""The last commit whose processes neither name receivers nor sign responses."""


@pytest.fixture(scope="module")
def older_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the older version."""
    archive = subprocess.run(["git", "archive", OLDER], cwd=REPO, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"commit {OLDER} is not in this repository")
    root = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(root, filter="data")
    return root


class Process:
    """One process of the cluster, of either version."""

    def __init__(self, kind: str, settings: dict[str, Any]) -> None:
        self.kind = kind
        self.settings = settings
        self.address = ""
        self._running: asyncio.subprocess.Process | None = None

    async def create_store(self, code: Path, **more: Any) -> None:
        """Start a replica of a Raft group whose members have no ids: it only creates its store."""
        await self._run(code, more)
        assert not await self._line()
        await self.stop()

    async def start(self, code: Path, **more: Any) -> None:
        await self._run(code, more)
        self.address = await self._line()
        assert self.address, f"{self.kind} did not start"

    async def _run(self, code: Path, more: dict[str, Any]) -> None:
        script = Path(__file__).with_name("one_process.py")
        self._running = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            self.kind,
            json.dumps({**self.settings, **more}),
            cwd=code,
            env={**os.environ, "PYTHONPATH": str(code)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def describe(self) -> dict[str, Any]:
        assert self._running is not None
        assert self._running.stdin is not None
        self._running.stdin.write(b"\n")
        found: dict[str, Any] = json.loads(await self._line())
        return found

    async def stop(self) -> None:
        if self._running is not None and self._running.stdin is not None:
            self._running.stdin.close()
            await self._running.wait()
            self._running = None

    async def _line(self) -> str:
        assert self._running is not None
        assert self._running.stdout is not None
        return (await self._running.stdout.readline()).decode().strip()


class UpgradedCluster:
    """A cluster with access control, which has a pair of brokers or a Raft group."""

    def __init__(self, root: Path, brokers: Mapping[str, dict[str, Any]]) -> None:
        self.brokers = tuple(brokers)
        names = ("nameserver", "rebalancer", *brokers, "gateway")
        ports = {name: free_port() for name in (*names, *(f"{each}-ha" for each in brokers))}
        access = {"authentication_enabled": True, "inner_credentials_file": str(inner_file(root))}
        at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        routes = {**access, "nameservers": [at["nameserver"]]}
        of_each: dict[str, dict[str, Any]] = {
            "nameserver": access,
            "rebalancer": {**routes, "data_dir": str(root / "rebalancer")},
            "gateway": {**routes, "route_cache_ms": 500},
        }
        for name, more in brokers.items():
            of_each[name] = {
                **routes,
                "authorization_enabled": True,
                "rebalancers": [at["rebalancer"]],
                "store_root": str(root / name),
                "store": {**SMALL_STORE, "flush": "sync"},
                "vip_channel": False,
                **more,
            }
            if more["replication"] != "raft":
                of_each[name] |= {"ha_listen_port": ports[f"{name}-ha"], "ha_allow_unauthenticated": True}
        self.processes = {
            name: Process(
                "broker" if name in brokers else name,
                {"listen_port": ports[name], "metrics_port": 0, **of_each[name]},
            )
            for name in names
        }
        self._at = at

    async def prepare(self, code: Path) -> None:
        """Create the stores of a Raft group, whose ids are in the settings of its members."""
        ids = {}
        for name in self.brokers:
            process = self.processes[name]
            if process.settings["replication"] == "raft":
                members = [f"@{self._at[each]}" for each in self.brokers]
                await process.create_store(code, raft_members=members)
                found = read_name(Path(process.settings["store_root"]))
                assert found is not None
                ids[name] = found.store_id
        for name in ids:
            self.processes[name].settings["raft_members"] = [f"{ids[to]}@{self._at[to]}" for to in ids]

    async def master(self) -> str:
        """Return the address of the broker that is the master or the leader; empty without one."""
        for name in self.brokers:
            if (await self.processes[name].describe())["role"] == "master":
                return self.processes[name].address
        return ""

    async def as_older(self, code: int, ext: dict[str, str], body: bytes) -> int:
        """Send a request of the inner user to the master as an older process does; return the code."""
        command = RemotingCommand(code, ext, body)
        Signer(INNER).sign(command, SystemClock().wall_ms())
        client = RemotingClient(SystemClock())
        try:
            return (await client.invoke(await self.master(), command, TIMEOUT_MS)).code
        except RemotingError:
            return -1
        finally:
            await client.close()

    async def create_topic(self) -> None:
        ext = SendMessageHeader("PG", "T", 0).to_ext()

        async def is_stored() -> bool:
            return await self.as_older(RequestCode.SEND_MESSAGE_V2, ext, b"first") == 0

        await eventually_async(is_stored)

    async def create_user(self, name: str) -> None:
        """Create a user, and wait until all brokers have it."""
        body = UserInfo(name, f"{name}-secret", "Super").encode()
        assert await self.as_older(RequestCode.AUTH_CREATE_USER, UserHeader(name).to_ext(), body) == 0
        for each in self.brokers:
            path = Path(self.processes[each].settings["store_root"]) / "config/raymqAccess.json"
            await eventually_async(
                lambda path=path: path.exists() and f'"{name}"' in path.read_text(), f"{each} has {name}"
            )

    async def check(self, channel: grpc.aio.Channel, step: str) -> None:
        """Send through the gateway, and wait until all brokers have the message."""

        async def status(name: str, secret: str) -> int:
            cluster: Any = None
            client = GrpcClient(cluster, channel, cluster, signed(name, secret))
            return int((await client.send(message("T"))).status.code)

        async def is_sent() -> bool:
            return await status("root", "root-secret") == Code.OK

        await eventually_async(is_sent, f"a send succeeds after {step}")
        assert await status("root", "guess") == Code.UNAUTHORIZED, step

        async def is_copied() -> bool:
            found = [await self.processes[each].describe() for each in self.brokers]
            return len({each["confirmed"] for each in found}) == 1

        await eventually_async(is_copied, f"all brokers have all messages after {step}")


PAIR = {"slave": {"replication": "async", "role": "slave"}, "master": {"replication": "async"}}
GROUP = {f"replica-{each}": {"replication": "raft", "replica": each} for each in range(3)}


@pytest.mark.extended
@pytest.mark.parametrize("brokers", [PAIR, GROUP], ids=["pair", "raft"])
def test_cluster_with_access_control_is_upgraded_process_by_process(
    tmp_path: Path, older_code: Path, brokers: Mapping[str, dict[str, Any]]
) -> None:
    async def story() -> None:
        cluster = UpgradedCluster(tmp_path, brokers)
        processes = cluster.processes
        try:
            await cluster.prepare(older_code)
            for process in processes.values():
                await process.start(older_code)
            async with grpc.aio.insecure_channel(processes["gateway"].address) as channel:
                await cluster.create_topic()
                await cluster.create_user("root")
                await cluster.check(channel, "the start")
                for step, more in (("upgrade", {"accept_unsigned_responses": True}), ("end", {})):
                    for name, process in processes.items():
                        await process.stop()
                        await process.start(REPO, **more)
                        await cluster.check(channel, f"{step} of {name}")
                    await cluster.create_user(step)
        finally:
            for process in reversed(processes.values()):
                await process.stop()

    asyncio.run(story())
