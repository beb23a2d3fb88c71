"""Signatures at a broker: their versions, their window, and what happens to those that are wrong."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import msgpack
import pytest

from actors.access import signatures
from actors.access.signatures import ADDRESSES, FREE_FAILURES, Failures
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import TopicHeader
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from actors.wire.signing import SIGNATURE, Credentials, Signer
from store.common.clock import SystemClock
from tests.actors.broker.brokers import SUBSCRIPTION, TIMEOUT_MS, Peer
from tests.actors.broker.core.auth.access_peers import (
    DENIED,
    INNER,
    SECRETS,
    Connect,
    SigningPeer,
    with_access,
)
from tests.actors.transport.remoting_peers import raw_peer
from tests.conftest import ClockAtRest

WINDOW_MS = 300_000
ALICE = Signer(Credentials("alice", SECRETS["alice"]))


def send_command(topic: str = "T", properties: str = "") -> RemotingCommand:
    ext = SendMessageHeader("PG", topic, 0, properties).to_ext()
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, b"hello")


async def answer(stranger: Peer, command: RemotingCommand) -> RemotingCommand:
    return await stranger.client.invoke(stranger.broker.address, command, TIMEOUT_MS)


async def permit_alice(inner: SigningPeer) -> None:
    await inner.create_user("alice")
    await inner.permit("alice", "Topic:*", "All")


def test_captured_request_cannot_be_sent_as_another_request(tmp_path: Path) -> None:
    """With RocketMQ's signature GET_TOPIC_CONFIG could be sent again as DELETE_TOPIC_IN_BROKER."""

    async def story(inner: SigningPeer, connect: Connect) -> None:
        await permit_alice(inner)
        await inner.send("T")
        stranger, now_ms = Peer(inner.broker), SystemClock().wall_ms()
        for change in ("code", "body", "empty field", "moved value"):
            get = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, TopicHeader("T").to_ext())
            command = get if change == "code" else send_command(properties="KEYS\x01k\x02")
            ALICE.sign(command, now_ms)
            if change == "code":
                command.code = RequestCode.DELETE_TOPIC_IN_BROKER
            elif change == "body":
                command.ext["zz"], command.body = "hello", b""
            elif change == "empty field":
                command.ext["k"] = ""
            else:
                command.ext["zz"] = command.ext.pop("i")
            response = await answer(stranger, command)
            assert (response.code, "signature is wrong" in (response.remark or "")) == (DENIED, True), change
        assert (await inner.send("T")).ext["queueOffset"] == "1"
        await stranger.client.close()

    with_access(story, tmp_path)


@pytest.mark.parametrize("shift_ms", [-WINDOW_MS - 1, -WINDOW_MS, 0, WINDOW_MS, WINDOW_MS + 1])
def test_signature_is_valid_only_within_the_window(tmp_path: Path, clock: ClockAtRest, shift_ms: int) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        stranger, command = Peer(inner.broker), send_command()
        Signer(INNER).sign(command, clock.wall_ms() + shift_ms)
        response = await answer(stranger, command)
        assert response.code == (DENIED if abs(shift_ms) > WINDOW_MS else 0)
        if response.code:
            side = "before" if shift_ms < 0 else "after"
            assert response.remark is not None
            assert f"signed 300,001 ms {side} this server's time" in response.remark
            assert "signature_window_ms 300,000: synchronize the clocks" in response.remark
        clock.advance(WINDOW_MS * 2 + 2)  # the same bytes later
        assert (await answer(stranger, command)).code == DENIED
        await stranger.client.close()

    with_access(story, tmp_path, clock=clock)


def test_signature_of_rocketmq_is_accepted_from_users_but_not_from_the_inner_user(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await permit_alice(inner)
        stranger, command = Peer(inner.broker), send_command()
        ALICE.sign_as_rocketmq(command)
        assert (await answer(stranger, command)).code == 0
        command = send_command()
        Signer(INNER).sign_as_rocketmq(command)
        response = await answer(stranger, command)
        assert (response.code, "raymq user create --super" in (response.remark or "")) == (DENIED, True)
        command.ext[SIGNATURE] = "guess"  # without the key, the remark is that of an unknown user
        assert "is unknown or the signature is wrong" in ((await answer(stranger, command)).remark or "")
        await stranger.client.close()

    with_access(story, tmp_path)


def test_failed_signatures_are_logged_once_per_second_without_secrets(
    tmp_path: Path, clock: ClockAtRest, caplog: pytest.LogCaptureFixture
) -> None:
    name = "mallory" * 100

    async def story(inner: SigningPeer, connect: Connect) -> None:
        stranger, signatures = Peer(inner.broker), []
        for _ in range(3):
            command = send_command()
            Signer(Credentials(name, "guess-secret")).sign(command, clock.wall_ms())
            signatures.append(command.ext[SIGNATURE])
            assert (await answer(stranger, command)).code == DENIED
        lines = [line for line in caplog.messages if "request_not_authenticated" in line]
        assert len(lines) == 1
        assert f"user='{name[:100]}'" in lines[0]
        assert "peer='127.0.0.1:" in lines[0]
        assert not any(each in caplog.text for each in ("guess-secret", name[:101], *signatures))
        clock.advance(1_000)
        await answer(stranger, command)
        assert "not_logged=2" in caplog.text
        await stranger.client.close()

    with caplog.at_level(logging.WARNING):
        with_access(story, tmp_path, clock=clock)


@pytest.mark.parametrize("kind", ["send", "pull"])  # pulls wait for the end of a turn
def test_each_repeated_failure_delays_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A client may not try many keys in one write; other connections of its address are served."""
    late, delay_ms = 3, 200
    took_s = 0.0

    def request() -> RemotingCommand:
        pull = PullMessageHeader("CG", "T", 0, 0, sys_flag=SUBSCRIPTION, subscription="*").to_ext()
        return send_command() if kind == "send" else RemotingCommand(RequestCode.PULL_MESSAGE, pull)

    async def story(inner: SigningPeer, connect: Connect) -> None:
        nonlocal took_s
        loop = asyncio.get_running_loop()
        await inner.send("T")
        async with raw_peer(inner.loop.server) as guesser:
            guesses = [request() for _ in range(FREE_FAILURES + late)]
            right = request()
            for number, command in enumerate((*guesses, right)):
                command.opaque = number
                key = INNER.secret_key if command is right else f"guess-{number}"
                Signer(Credentials("inner", key)).sign(command, SystemClock().wall_ms())
            began_s = loop.time()
            guesser.send(*guesses, right)
            for number in range(FREE_FAILURES + late):
                response = await guesser.read()
                assert (response.opaque, response.code) == (number, DENIED)
                assert (await inner.send("T")).code == 0
            response = await guesser.read()
            assert (response.opaque, response.code) == (len(guesses), 0)
            took_s = loop.time() - began_s

    monkeypatch.setattr(signatures, "REFUSAL_DELAY_MS", delay_ms)
    with_access(story, tmp_path)
    assert took_s > late * delay_ms / 1000 * 0.9


def test_handle_stays_usable_after_wrong_keys(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        read = inner.broker.handle.offsets
        await inner.send("T")
        keys = {"access_key": "inner", "secret_key": INNER.secret_key}
        for number in range(FREE_FAILURES + 1):
            wrong = msgpack.packb({"v": 1, "topic": "T", **keys, "secret_key": f"guess-{number}"})
            assert msgpack.unpackb(await read(wrong))["code"] == DENIED
        assert msgpack.unpackb(await read(msgpack.packb({"v": 1, "topic": "T", **keys})))["code"] == 0

    with_access(story, tmp_path)


def test_addresses_with_failures_are_bounded() -> None:
    failures = Failures()
    for number in range(ADDRESSES.limit + 5):
        assert failures.add(number.to_bytes(4), 0) == 1
    assert len(failures) == ADDRESSES.limit
    assert failures.add((ADDRESSES.limit + 4).to_bytes(4), 0) == 2
    assert failures.add((0).to_bytes(4), 0) == 1
    assert failures.add((0).to_bytes(4), 60_000_000_000) == 1


def test_further_addresses_do_not_clear_the_count_of_one_with_more_failures() -> None:
    failures = Failures()
    for _ in range(FREE_FAILURES):
        failures.add(b"guesser", 0)
    for number in range(ADDRESSES.limit + 5):
        failures.add(number.to_bytes(4), 1)
    assert failures.add(b"guesser", 2) == FREE_FAILURES + 1
    for number in range(ADDRESSES.limit):  # those of the last minute are forgotten first
        failures.add(number.to_bytes(4), 60_000_000_001)
    assert len(failures) == ADDRESSES.limit
