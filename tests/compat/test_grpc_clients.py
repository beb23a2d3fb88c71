"""RocketMQ 5's SDKs through a gateway: each in a process and an environment of its own."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.actors.gateway.gateways import GrpcClient, until_acked, with_gateway
from tests.compat.sdk.test_grpc_sdks import create_lite_groups
from tests.eventually import LIMIT_S, eventually_async

PROGRAMS = Path(__file__).parent / "sdk"
SDK = "rocketmq-python-client==5.1.2"


def command(program: str, client: GrpcClient, *arguments: object) -> list[str]:
    uv = shutil.which("uv")
    assert uv is not None
    environment = [uv, "run", "--no-project", "--isolated", "--python", "3.11", "--with", SDK, "python"]
    return [*environment, str(PROGRAMS / program), client.cluster.gateway_address, *map(str, arguments)]


async def output_of(program: str, client: GrpcClient, *arguments: object) -> str:
    process = await asyncio.create_subprocess_exec(
        *command(program, client, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 4 * LIMIT_S)
    return output.decode()


async def send(client: GrpcClient, count: int) -> None:
    output = await output_of("python_producer.py", client, "Plain", count)
    assert f"SENT {count}" in output, output


@pytest.mark.java
def test_python_sdk_sends_receives_and_acks_a_message(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        output = await output_of("python_round_trip.py", client, "Plain")
        assert "ACKED hello" in output, output
        await until_acked(client, "round-trip")

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_python_sdk_sends_messages(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await send(client, 20)
        stored = await client.stored("Plain")
        assert sorted(int(each.body) for each in stored) == list(range(20))
        assert {each.properties["colour"] for each in stored} == {"blue"}
        assert {each.properties["TAGS"] for each in stored} == {"even", "odd"}

    with_gateway(tmp_path, story)


async def received(client: GrpcClient, program: str, count: int, *more: str) -> None:
    """Start a consumer that gets `count` of 20 messages, send them, and wait until it has received them."""
    consumer = await asyncio.create_subprocess_exec(
        *command(program, client, "Plain", count, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert consumer.stdout is not None
    assert await asyncio.wait_for(consumer.stdout.readline(), 4 * LIMIT_S) == b"READY\n"
    await client.peer.until_held(1)  # a new group begins at the end of the topic
    await send(client, 20)
    output, errors = await asyncio.wait_for(consumer.communicate(), 4 * LIMIT_S)
    assert f"RECEIVED {count}" in output.decode(), errors.decode()


@pytest.mark.extended
@pytest.mark.parametrize("program", ["python_simple_consumer.py", "python_push_consumer.py"])
def test_python_sdk_receives_messages(tmp_path: Path, program: str) -> None:
    async def story(client: GrpcClient) -> None:
        await received(client, program, 20)

    with_gateway(tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "expression"), [("TAG", "odd || other"), ("SQL", "number >= 10 AND colour = 'blue'")]
)
def test_python_sdk_receives_filtered_messages(tmp_path: Path, kind: str, expression: str) -> None:
    async def story(client: GrpcClient) -> None:
        await received(client, "python_push_consumer.py", 10, kind, expression)

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_python_sdk_recalls_a_delayed_message(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Delay", "DELAY")
        output = await output_of("python_recall.py", client, "Delay")
        assert "RECALLED" in output, output
        await eventually_async(lambda: client.stored("Delay"))  # the message that is due last
        assert [each.body for each in await client.stored("Delay")] == [b"kept"]

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_python_sdk_receives_lite_messages(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await create_lite_groups(client)
        output = await output_of("python_lite.py", client)
        assert "PUSHED a:a0 a:a0 a:a1\nRECEIVED b:b0\nDONE" in output, output

    with_gateway(tmp_path, story)
