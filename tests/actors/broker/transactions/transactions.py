"""Helpers: send and end transactions, and restart brokers from the files of a killed one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import EndTransactionHeader
from store.message.message import MessageExt
from store.message_store import MessageStore
from tests.actors.broker.brokers import Peer
from tests.eventually import eventually_async

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
PREPARED = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"


async def begin(
    peer: Peer, body: bytes = b"half", topic: str = "T", properties: str = "", queue_id: int = 0
) -> RemotingCommand:
    """Send the half message of a transaction."""
    sent = await peer.send(topic, body, queue_id, PREPARED + properties, sys_flag=4)
    assert sent.code == 0, sent.remark
    return sent


def end_header(half: RemotingCommand, outcome: int, **changes: Any) -> EndTransactionHeader:
    """Return the header that ends the transaction whose half message got the response `half`."""
    fields = {
        "producer_group": "PG",
        "tran_state_table_offset": int(half.ext["queueOffset"]),
        "commit_log_offset": int(half.ext["msgId"][16:], 16),
        "commit_or_rollback": outcome,
        "msg_id": half.ext["transactionId"],
        "transaction_id": half.ext["transactionId"],
    }
    return EndTransactionHeader(**{**fields, **changes})


async def end(peer: Peer, half: RemotingCommand, outcome: int, **changes: Any) -> RemotingCommand:
    """End a transaction and return the response."""
    return await peer.ask(RequestCode.END_TRANSACTION, end_header(half, outcome, **changes).to_ext())


async def every(peer: Peer, topic: str, queue_id: int = 0) -> list[MessageExt]:
    """Return all messages of a queue."""
    found: list[MessageExt] = []
    while more := await peer.messages(topic, len(found), queue_id):
        found += more
    return found


async def settled(peer: Peer) -> None:
    """Wait until everything that the broker has appended, op messages included, is dispatched."""
    loop = peer.broker.graph.loop
    await asyncio.sleep(0)  # runs the scheduled append of op messages

    def is_dispatched() -> bool:
        loop.server.request_tick()
        loop.turns.catch_up()  # a clock at rest never ends the pause between two dispatches
        return loop.store.positions.dispatched == loop.store.positions.written

    await eventually_async(is_dispatched)


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
        shutil.copytree(store_root, root / "store", copy_function=_copy_if_present)
        return root


def _copy_if_present(source: str, destination: str) -> None:
    with suppress(FileNotFoundError):  # a temporary file, which another thread renames
        shutil.copy2(source, destination)
