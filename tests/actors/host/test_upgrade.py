"""A cluster of the version before processes proved themselves is upgraded, process by process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import grpc
import pytest

from actors.gateway.proto.definition_pb2 import Code
from actors.remoting.admin_headers import UserHeader
from actors.remoting.bodies.access import UserInfo
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.hot_headers import SendMessageHeader
from actors.remoting.signing import Signer
from store.clock import SystemClock
from tests.actors.broker.auth.access_peers import INNER, inner_file
from tests.actors.broker.brokers import SMALL_STORE, TIMEOUT_MS
from tests.actors.gateway.gateways import GrpcClient, message
from tests.actors.gateway.test_gateway_access import signed
from tests.eventually import eventually_async
from tests.ports import free_port

REPO = Path(__file__).parents[3]
OLDER = "7a30149b"
"""The last commit whose processes neither name receivers nor sign responses."""
ORDER = ("nameserver", "rebalancer", "master", "slave", "gateway")


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

    async def start(self, code: Path, **more: Any) -> None:
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
        self.address = await self._line()
        assert self.address, f"{self.kind} did not start"

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


def cluster_of(root: Path) -> dict[str, Process]:
    """Return the processes of a cluster with access control, by name."""
    ports = {name: free_port() for name in (*ORDER, "master-ha", "slave-ha")}
    access = {"authentication_enabled": True, "inner_credentials_file": str(inner_file(root))}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    routes = {**access, "nameservers": [at["nameserver"]]}

    def listener(name: str, **more: Any) -> dict[str, Any]:
        return {"listen_port": ports[name], "metrics_port": 0, **more}

    def broker(name: str, **more: Any) -> dict[str, Any]:
        return listener(
            name,
            **routes,
            authorization_enabled=True,
            rebalancers=[at["rebalancer"]],
            store_root=str(root / name),
            store={**SMALL_STORE, "flush": "async"},
            vip_channel=False,
            replication="async",
            ha_listen_port=ports[f"{name}-ha"],
            ha_allow_unauthenticated=True,
            **more,
        )

    return {
        "nameserver": Process("nameserver", listener("nameserver", **access)),
        "rebalancer": Process(
            "rebalancer", listener("rebalancer", **routes, data_dir=str(root / "rebalancer"))
        ),
        "master": Process("broker", broker("master")),
        "slave": Process("broker", broker("slave", role="slave")),
        "gateway": Process("gateway", listener("gateway", **routes)),
    }


class Story:
    """Checks that the cluster works, whichever versions its processes have."""

    def __init__(self, processes: dict[str, Process], channel: grpc.aio.Channel) -> None:
        self._processes = processes
        self._channel = channel

    async def as_older(self, code: int, ext: dict[str, str], body: bytes) -> int:
        """Send a request of the inner user to the master as an older process does; return the code."""
        command = RemotingCommand(code, ext, body)
        Signer(INNER).sign(command, SystemClock().wall_ms())
        client = RemotingClient(SystemClock())
        try:
            return (await client.invoke(self._processes["master"].address, command, TIMEOUT_MS)).code
        finally:
            await client.close()

    async def create_topic(self) -> None:
        ext = SendMessageHeader("PG", "T", 0).to_ext()

        async def is_stored() -> bool:
            return await self.as_older(RequestCode.SEND_MESSAGE_V2, ext, b"first") == 0

        await eventually_async(is_stored)

    async def create_user(self, name: str) -> None:
        body = UserInfo(name, f"{name}-secret", "Super").encode()
        assert await self.as_older(RequestCode.AUTH_CREATE_USER, UserHeader(name).to_ext(), body) == 0

    async def status(self, name: str, secret: str) -> int:
        """Send a message through the gateway; return the status."""
        cluster: Any = None
        client = GrpcClient(cluster, self._channel, cluster, signed(name, secret))
        return int((await client.send(message("T"))).status.code)

    async def check(self, step: str) -> None:
        async def is_sent() -> bool:
            return await self.status("root", "root-secret") == Code.OK

        await eventually_async(is_sent, f"a send succeeds after {step}")
        assert await self.status("root", "guess") == Code.UNAUTHORIZED, step

        async def is_copied() -> bool:
            master, slave = [await self._processes[each].describe() for each in ("master", "slave")]
            return slave["replication_state"] == "following" and slave["confirmed"] == master["confirmed"]

        await eventually_async(is_copied, f"the slave has all messages after {step}")

    async def until_copied(self, name: str) -> None:
        path = Path(self._processes["slave"].settings["store_root"]) / "config/raymqAccess.json"
        await eventually_async(
            lambda: path.exists() and f'"{name}"' in path.read_text(), f"the slave has user {name}"
        )


@pytest.mark.extended
def test_cluster_with_access_control_is_upgraded_process_by_process(tmp_path: Path, older_code: Path) -> None:
    async def story() -> None:
        processes = cluster_of(tmp_path)
        try:
            for name in ORDER:
                await processes[name].start(older_code)
            async with grpc.aio.insecure_channel(processes["gateway"].address) as channel:
                story = Story(processes, channel)
                await story.create_topic()
                await story.create_user("root")
                await story.until_copied("root")
                await story.check("the start")
                for step, more in (("upgrade", {"accept_unsigned_responses": True}), ("end of it", {})):
                    for name in ORDER:
                        await processes[name].stop()
                        await processes[name].start(REPO, **more)
                        await story.check(f"{step} of {name}")
                    await story.create_user(step.replace(" ", "-"))
                    await story.until_copied(step.replace(" ", "-"))
        finally:
            for name in reversed(ORDER):
                await processes[name].stop()

    asyncio.run(story())
