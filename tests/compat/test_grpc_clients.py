"""RocketMQ 5's SDKs through a gateway: each in a process and an environment of its own."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.actors.gateway.gateways import GrpcClient, with_gateway
from tests.eventually import LIMIT_S

PROGRAM = Path(__file__).parent / "sdk" / "python_producer.py"
SDK = "rocketmq-python-client==5.1.2"


@pytest.mark.extended
def test_python_sdk_sends_messages(tmp_path: Path) -> None:
    uv = shutil.which("uv")
    assert uv is not None

    async def story(client: GrpcClient) -> None:
        command = [uv, "run", "--no-project", "--isolated", "--python", "3.11", "--with", SDK, "python"]
        arguments = [str(PROGRAM), client.cluster.gateway_address, "Plain", "20"]
        done = await asyncio.to_thread(
            subprocess.run, [*command, *arguments], capture_output=True, text=True, timeout=4 * LIMIT_S
        )
        assert "SENT 20" in done.stdout, done.stdout + done.stderr
        stored = await client.stored("Plain")
        assert sorted(int(each.body) for each in stored) == list(range(20))
        assert {each.properties["colour"] for each in stored} == {"blue"}
        assert {each.properties["TAGS"] for each in stored} == {"t"}

    with_gateway(tmp_path, story)
