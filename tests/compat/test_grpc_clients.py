"""RocketMQ 5's SDKs through a gateway: each in a process and an environment of its own."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.actors.gateway.gateways import GrpcClient, with_gateway
from tests.eventually import LIMIT_S

PROGRAMS = Path(__file__).parent / "sdk"
SDK = "rocketmq-python-client==5.1.2"


def command(program: str, client: GrpcClient, count: int) -> list[str]:
    uv = shutil.which("uv")
    assert uv is not None
    environment = [uv, "run", "--no-project", "--isolated", "--python", "3.11", "--with", SDK, "python"]
    return [*environment, str(PROGRAMS / program), client.cluster.gateway_address, "Plain", str(count)]


async def send(client: GrpcClient, count: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *command("python_producer.py", client, count), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 4 * LIMIT_S)
    assert f"SENT {count}" in output.decode(), output.decode()


@pytest.mark.extended
def test_python_sdk_sends_messages(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await send(client, 20)
        stored = await client.stored("Plain")
        assert sorted(int(each.body) for each in stored) == list(range(20))
        assert {each.properties["colour"] for each in stored} == {"blue"}
        assert {each.properties["TAGS"] for each in stored} == {"t"}

    with_gateway(tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("program", ["python_simple_consumer.py", "python_push_consumer.py"])
def test_python_sdk_receives_messages(tmp_path: Path, program: str) -> None:
    async def story(client: GrpcClient) -> None:
        consumer = await asyncio.create_subprocess_exec(
            *command(program, client, 20), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert consumer.stdout is not None
        assert await asyncio.wait_for(consumer.stdout.readline(), 4 * LIMIT_S) == b"READY\n"
        await client.peer.until_held(1)  # a new group begins at the end of the topic
        await send(client, 20)
        output, errors = await asyncio.wait_for(consumer.communicate(), 4 * LIMIT_S)
        assert b"RECEIVED 20" in output, errors.decode()

    with_gateway(tmp_path, story)
