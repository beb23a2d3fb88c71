"""Helpers: send and end transactions, and restart brokers from the files of a killed one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from actors.broker.broker_settings import BrokerSettings
from actors.broker.features.transactions.open_transactions import HalfPlace
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import CheckTransactionStateHeader, EndTransactionHeader
from store.message.message import MessageExt
from store.message_store import MessageStore
from tests.actors.broker.brokers import A_DAY_MS, Peer, run_now, settings_of
from tests.eventually import eventually_async

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
TIMEOUT_MS = 6_000
"""The default of `transaction_timeout_ms`."""
PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"


async def begin(
    peer: Peer, body: bytes = b"half", topic: str = "T", properties: str = "", queue_id: int = 0
) -> RemotingCommand:
    """Send the half message of a transaction."""
    sent = await peer.send(topic, body, queue_id, PREPARED + properties, sys_flag=4)
    assert sent.code == 0, sent.remark
    return sent


def place_of(half: RemotingCommand) -> HalfPlace:
    """Return where the half message is that got the response `half`."""
    return HalfPlace(int(half.ext["queueOffset"]), int(half.ext["msgId"][16:], 16))


def end_header(half: RemotingCommand, outcome: int, **changes: Any) -> EndTransactionHeader:
    """Return the header that ends the transaction whose half message got the response `half`."""
    return header_at(place_of(half), half.ext["transactionId"], outcome, **changes)


def header_at(place: HalfPlace, uniq_key: str, outcome: int, **changes: Any) -> EndTransactionHeader:
    """Return the header that ends the transaction with a half message, or copy of it, at `place`."""
    fields = {
        "producer_group": "PG",
        "tran_state_table_offset": place.offset,
        "commit_log_offset": place.position,
        "commit_or_rollback": outcome,
        "msg_id": uniq_key,
        "transaction_id": uniq_key,
    }
    return EndTransactionHeader(**{**fields, **changes})


async def end(peer: Peer, half: RemotingCommand, outcome: int, **changes: Any) -> RemotingCommand:
    """End a transaction and return the response."""
    return await end_at(peer, place_of(half), half.ext["transactionId"], outcome, **changes)


async def end_at(
    peer: Peer, place: HalfPlace, uniq_key: str, outcome: int, **changes: Any
) -> RemotingCommand:
    """End the transaction with a half message, or copy of it, at `place`, and return the response."""
    ext = header_at(place, uniq_key, outcome, **changes).to_ext()
    return await peer.ask(RequestCode.END_TRANSACTION, ext)


async def every(peer: Peer, topic: str, queue_id: int = 0) -> list[MessageExt]:
    """Return all messages of a queue."""
    found: list[MessageExt] = []
    while more := await peer.messages(topic, len(found), queue_id):
        found += more
    return found


async def settled(peer: Peer) -> None:
    """Wait until everything that the broker has appended, op messages included, is dispatched."""
    loop = peer.loop
    await asyncio.sleep(0)  # runs the scheduled append of op messages

    def is_dispatched() -> bool:
        loop.server.request_tick()
        loop.end_of_turn.catch_up()  # a clock at rest never ends the pause between two dispatches
        return loop.store.positions.dispatched == loop.store.positions.written

    await eventually_async(is_dispatched)


def manual(root: Path, **settings: Any) -> BrokerSettings:
    """Return settings with which the broker starts no round of checks: the test does."""
    return settings_of(root, transaction_check_interval_ms=A_DAY_MS, **settings)


class Producer:
    """A connected producer that records the checks that it receives."""

    def __init__(self, peer: Peer) -> None:
        self.received: list[RemotingCommand] = []
        table = RequestTable()
        table.add(RequestCode.CHECK_TRANSACTION_STATE, self._check)
        self.peer = Peer(peer.broker, table)

    def _check(self, context: RequestContext) -> None:
        context.command.body = bytes(context.command.body)
        self.received.append(context.command)

    async def respond(self, number: int, outcome: int) -> RemotingCommand:
        """End the transaction of a received check with the numbers that the check has."""
        check = CheckTransactionStateHeader.from_ext(self.received[number].ext)
        place = HalfPlace(check.tran_state_table_offset, check.commit_log_offset)
        changes = {"msg_id": check.msg_id, "topic": check.topic, "from_transaction_check": True}
        return await end_at(self.peer, place, check.transaction_id, outcome, **changes)

    async def until_received(self, count: int) -> None:
        await eventually_async(lambda: len(self.received) >= count)
        assert len(self.received) == count


@asynccontextmanager
async def a_producer(peer: Peer, client_id: str = "p1") -> AsyncIterator[Producer]:
    producer = Producer(peer)
    await producer.peer.heartbeat(client_id, "unused")
    try:
        yield producer
    finally:
        await producer.peer.client.close()


async def check(peer: Peer) -> None:
    """Run one round of checks over all transactions sent before."""
    await settled(peer)
    await run_now(peer.broker, "transaction-checks")
    await settled(peer)


def copy_store(store_root: Path, root: Path) -> None:
    """Copy the files of an open store to `root` / store, as a kill of its broker would leave them."""

    def copy_if_present(source: str, destination: str) -> None:
        with suppress(FileNotFoundError):  # a temporary file, which another thread renames
            shutil.copy2(source, destination)

    shutil.copytree(store_root, root / "store", copy_function=copy_if_present)


class CrashImages:
    """Copies the store's files before each append, as a broker would leave them that is killed there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, into: Path) -> None:
        self.roots: list[Path] = []
        self._into = into
        append = MessageStore.append

        def append_after_copy(store: MessageStore, draft: Any) -> Any:
            self.take(store.root)
            return append(store, draft)

        monkeypatch.setattr(MessageStore, "append", append_after_copy)
        self.stop: Callable[[], None] = lambda: monkeypatch.setattr(MessageStore, "append", append)

    def take(self, store_root: Path) -> Path:
        """Copy the files now; return the directory that has the copy as `store`."""
        root = self._into / f"image{len(self.roots)}"
        self.roots.append(root)
        copy_store(store_root, root)
        return root
