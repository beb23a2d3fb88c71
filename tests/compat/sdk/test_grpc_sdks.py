"""RocketMQ 5's SDKs for Java, Node.js and Go through a gateway with access control."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import orjson
import pytest

from actors.gateway.gateway_settings import GatewaySettings
from actors.gateway.service import GatewayService
from actors.wire.codes import RequestCode
from store.common.clock import SystemClock
from tests.actors.broker.core.auth.access_peers import SECRETS, SigningPeer
from tests.actors.gateway.gateways import GrpcClient, until_acked, with_gateway
from tests.actors.gateway.test_gateway_lite import restarted, sent
from tests.compat.build import (
    BuildFailed,
    JavaKit,
    JavaNotFound,
    NodeNotFound,
    go_program_of,
    jars_of,
    java_program,
    node_modules_of,
)
from tests.compat.mqadmin import Mqadmin, rows
from tests.eventually import LIMIT_S, eventually_async

PROGRAMS = Path(__file__).parent
JAVA_SDK = "sdk-5.0.8"
LITE_JAVA_SDK = "sdk-5.2.0"
"""It has LitePushConsumer."""
TOPICS = {"Fifo": "FIFO", "Delay": "DELAY", "Transaction": "TRANSACTION"}
Command = tuple[list[str], dict[str, str]]
"""Arguments, and further environment variables."""
RECEIVED = {"simple": 20, "push": 20, "fifo": 20, "tag": 10, "sql": 10}
BROKER = {"transaction_check_interval_ms": "500", "transaction_timeout_ms": "1000"}


def java_jars(sdk: str = JAVA_SDK) -> str:
    """Return the class path of a release of the SDK."""
    return f"{jars_of(PROGRAMS / 'java' / 'pom.xml', (JAVA_SDK, LITE_JAVA_SDK)) / sdk}/*"


def java(operation: str, gateway: str, user: str, key: str, *more: str) -> Command:
    options = ["-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", java_jars(), *more]
    program = str(PROGRAMS / "java" / "Sdk.java")
    return [
        str(java_program("java")), *options, program, operation, gateway, user, key,
    ], {}  # fmt: skip


def node(operation: str, gateway: str, user: str, key: str) -> Command:
    modules = node_modules_of(PROGRAMS / "node" / "package.json")
    program = [shutil.which("node") or "node", str(PROGRAMS / "node" / "sdk.js")]
    return [*program, operation, gateway, user, key], {"NODE_PATH": str(modules)}


def go(operation: str, gateway: str, user: str, key: str) -> Command:
    return [str(go_program_of(PROGRAMS / "go")), operation, gateway, user, key], {}


SDKS: dict[str, Callable[[str, str, str, str], Command]] = {"java": java, "node": node, "go": go}
IN_DEFAULT_RUN = ("java", "node")


async def started(command: Command, home: Path) -> asyncio.subprocess.Process:
    arguments, more = command
    return await asyncio.create_subprocess_exec(
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **more, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
    )


async def output_of(process: asyncio.subprocess.Process) -> str:
    output, _ = await asyncio.wait_for(process.communicate(), 6 * LIMIT_S)
    return output.decode()


async def ready(consumer: asyncio.subprocess.Process) -> asyncio.subprocess.Process:
    assert consumer.stdout is not None
    lines = []
    while b"READY\n" not in lines:
        lines.append(await asyncio.wait_for(consumer.stdout.readline(), 6 * LIMIT_S))
        assert lines[-1], lines
    return consumer


async def create_group(client: GrpcClient, **group: object) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    created = await client.peer.ask(code, body=orjson.dumps(group))
    assert created.code == 0, created.remark


class Sdk:
    """One SDK as the user alice, in a process per operation."""

    def __init__(self, name: str, client: GrpcClient, home: Path) -> None:
        self._command = SDKS[name]
        self._client = client
        self._home = home

    async def start(self, operation: str, key: str = SECRETS["alice"]) -> asyncio.subprocess.Process:
        gateway = self._client.cluster.gateway_address
        return await started(self._command(operation, gateway, "alice", key), self._home)


def with_sdk(name: str, root: Path, story: object) -> None:
    """Run a story with an SDK; its user alice may do everything with all topics and groups."""

    async def prepared(client: GrpcClient) -> None:
        peer = cast("SigningPeer", client.peer)
        await peer.create_user("alice")
        for resource in ("Topic:*", "Group:*"):
            assert (await peer.permit("alice", resource, "All")).code == 0
        for topic, kind in TOPICS.items():
            await client.create_topic(topic, kind)
        await story(client, Sdk(name, client, root))  # type: ignore[operator]

    with_gateway(root, prepared, BROKER, has_users=True)


@pytest.mark.java
@pytest.mark.parametrize("name", IN_DEFAULT_RUN)
def test_sdk_sends_receives_and_acks_a_message(tmp_path: Path, name: str) -> None:
    try:
        SDKS[name]("", "", "", "")
    except (BuildFailed, JavaNotFound, NodeNotFound) as missing:  # or the registry cannot be reached
        pytest.skip(str(missing))

    async def story(client: GrpcClient) -> None:
        command = SDKS[name]("round-trip", client.cluster.gateway_address, "", "")
        output = await output_of(await started(command, tmp_path))
        assert "ACKED hello" in output, output
        await until_acked(client, "round-trip")

    with_gateway(tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("name", SDKS)
def test_sdk_sends_messages_of_all_types(tmp_path: Path, name: str) -> None:
    async def story(client: GrpcClient, sdk: Sdk) -> None:
        output = await output_of(await sdk.start("send"))
        assert "SENT 20" in output, output
        plain, fifo = await client.stored("Plain"), await client.stored("Fifo")
        assert sorted(int(each.body) for each in plain) == list(range(20))
        assert {(each.properties["colour"], each.properties["TAGS"]) for each in plain} == {
            ("blue", "even"), ("blue", "odd"),
        }  # fmt: skip
        assert [int(each.body) for each in fifo] == list(range(20))

        async def is_complete() -> bool:
            decided = sorted(each.body for each in await client.stored("Transaction"))
            return decided == [b"checked", b"committed"] and len(await client.stored("Delay")) == 1

        await eventually_async(is_complete)

    with_sdk(name, tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("operation", RECEIVED)
@pytest.mark.parametrize("name", SDKS)
def test_sdk_receives_messages(tmp_path: Path, name: str, operation: str) -> None:
    async def story(client: GrpcClient, sdk: Sdk) -> None:
        await create_group(client, groupName="fifo", consumeMessageOrderly=True, retryMaxTimes=16)
        consumer = await ready(await sdk.start(operation))
        # A new group begins at the end of the topic. One pop waits on the broker, or one on each queue.
        await client.peer.until_held(2 if operation == "fifo" else 1)
        sent = await output_of(await sdk.start("send"))
        assert "SENT 20" in sent, sent
        output = await output_of(consumer)
        assert f"RECEIVED {RECEIVED[operation]}" in output, output
        if operation == "fifo":
            assert f"ORDER {' '.join(map(str, range(20)))}\n" in output, output

    with_sdk(name, tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("name", SDKS)
def test_messages_that_an_sdk_cannot_process_are_dead_letters(tmp_path: Path, name: str) -> None:
    async def story(client: GrpcClient, sdk: Sdk) -> None:
        await create_group(client, groupName="dead", retryMaxTimes=1)
        consumer = await ready(await sdk.start("dead"))
        await client.peer.until_held(1)
        await output_of(await sdk.start("send"))

        async def are_dead() -> bool:
            dead = await client.stored("%DLQ%dead")
            return sorted(int(each.body) for each in dead) == list(range(1, 20, 2))

        await eventually_async(are_dead, within_s=180)
        consumer.kill()
        await consumer.wait()

    with_sdk(name, tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("name", SDKS)
def test_sdk_recalls_a_delayed_message(tmp_path: Path, name: str) -> None:
    async def story(client: GrpcClient, sdk: Sdk) -> None:
        output = await output_of(await sdk.start("recall"))
        assert "RECALLED" in output, output
        await eventually_async(lambda: client.stored("Delay"))  # the message that is due last
        assert [each.body for each in await client.stored("Delay")] == [b"kept"]

    with_sdk(name, tmp_path, story)


@pytest.mark.extended
@pytest.mark.parametrize("name", SDKS)
def test_sdk_with_a_wrong_key_reports_it(tmp_path: Path, name: str) -> None:
    async def story(client: GrpcClient, sdk: Sdk) -> None:
        process = await sdk.start("send", "wrong")
        output = await output_of(process)
        assert process.returncode != 0
        assert "unknown or the signature is wrong" in output
        assert await client.stored("Plain") == []

    with_sdk(name, tmp_path, story)


@pytest.mark.extended
def test_mqadmin_shows_the_consumer_of_an_sdk(tmp_path: Path, kit: JavaKit) -> None:
    async def story(client: GrpcClient) -> None:
        arguments = java("push", client.cluster.gateway_address, "", "")
        consumer = await ready(await started(arguments, tmp_path))
        await client.peer.until_held(1)

        def shown() -> list[str]:
            with Mqadmin(kit, client.cluster.nameserver_address, tmp_path / "mqadmin") as mqadmin:
                return mqadmin.run("consumerConnection -g push")

        [output] = await asyncio.to_thread(shown)
        [member] = rows(output)
        assert member["Language"] == "JAVA", output
        assert "Plain" in output
        consumer.kill()
        await consumer.wait()

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_java_sdk_accepts_a_self_signed_certificate(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        for topic, kind in TOPICS.items():
            await client.create_topic(topic, kind)
        nameserver = client.cluster.nameserver_address
        settings = GatewaySettings(
            nameservers=[nameserver], listen_port=0, tls="permissive", tls_self_signed=True
        )
        gateway = GatewayService(settings, SystemClock())
        await gateway.start()
        try:
            output = await output_of(
                await started(java("send", gateway.address, "", "", "-Dtls=true"), tmp_path)
            )
            assert "SENT 20" in output, output
        finally:
            await gateway.stop()

    with_gateway(tmp_path, story, BROKER)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ("lite", "group lite is not a lite group: create it with the attribute lite.bind.topic=Plain"),
        ("filter", "the tag expression has 40,000 characters, over the limit of 32,767"),
    ],
)
def test_java_sdk_shows_why_a_client_is_refused(tmp_path: Path, operation: str, reason: str) -> None:
    async def story(client: GrpcClient) -> None:
        program = [str(PROGRAMS / "java" / "Refused.java"), operation, client.cluster.gateway_address]
        command = [str(java_program("java")), "-cp", java_jars(LITE_JAVA_SDK), *program]
        output = await output_of(await started((command, {}), tmp_path))
        [shown] = [line for line in output.splitlines() if line.startswith("REFUSED ")] or [output]
        assert reason in shown

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_java_sdk_receives_urgent_messages_first(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Urgent", "PRIORITY", queues=4)
        await client.create_topic("Normal", "NORMAL")
        program = [str(PROGRAMS / "java" / "Priorities.java"), client.cluster.gateway_address]
        command = [str(java_program("java")), "-cp", java_jars(LITE_JAVA_SDK), *program]
        output = await output_of(await started((command, {}), tmp_path))
        assert "RECEIVED 33221100\n" in output, output
        assert output.count("REFUSED\n") == 2, output

    with_gateway(tmp_path, story)


def lite_program(operation: str, client: GrpcClient) -> Command:
    program = [str(PROGRAMS / "java" / "Lites.java"), operation, client.cluster.gateway_address]
    return [str(java_program("java")), "-Xmx512m", "-cp", java_jars(LITE_JAVA_SDK), *program], {}


async def create_lite_groups(client: GrpcClient) -> None:
    await client.create_topic("Chats", "LITE", queues=4)
    bound = {"+lite.bind.topic": "Chats"}
    exclusive = {**bound, "+lite.sub.model": "Exclusive"}
    for name, is_fifo, attributes in (
        ("fifo", True, bound),
        ("plain", False, bound),
        ("exclusive", True, exclusive),
    ):
        await create_group(
            client, groupName=name, consumeMessageOrderly=is_fifo, retryMaxTimes=2, attributes=attributes
        )


@pytest.mark.extended
def test_java_sdk_has_sessions_in_lite_topics(tmp_path: Path) -> None:
    """Failures, dead letters, takeovers, unsubscriptions; and traps 2 and 9 of RocketMQ 5.5.0."""

    async def story(client: GrpcClient) -> None:
        await create_lite_groups(client)
        output = await output_of(await started(lite_program("sessions", client), tmp_path))
        lines = output.splitlines()
        assert "WANTED" not in output, output
        assert lines[-1] == "DONE", output
        assert {"REFUSED", "ATTEMPTS [1, 2]", "NOTIFIED"} <= {*lines}, output
        assert [each.body for each in await client.stored("%DLQ%fifo", 1)] == [b"poison"]

    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_java_sdk_continues_its_session_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await create_lite_groups(client)
        consumer = await ready(await started(lite_program("wait", client), tmp_path))
        await sent(client, "a", "before")
        await restarted(client)
        await sent(client, "a", "end")
        output = await output_of(consumer)
        assert "RECEIVED fifo:before" in output, output
        assert "RECEIVED fifo:end" in output, output

    with_gateway(tmp_path, story)
