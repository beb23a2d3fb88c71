"""Queue locks: one owner per group at a time, until it unlocks the queue or the lock expires after 60 s."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import orjson
import pytest

from actors.broker.core.group.queue_locks import LockFile, QueueLocks
from actors.wire.bodies.locks import HeldLock, LockRequest, decode_held_locks, encode_held_locks
from actors.wire.codes import RequestCode, ResponseCode
from store.message.message_queue import MessageQueue
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, settings_of, with_broker

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]


def ungenerated(queues: list[MessageQueue]) -> list[tuple[MessageQueue, int]]:
    """Return the queues as a Java member locks them, which has no generations."""
    return [(queue, 0) for queue in queues]


def test_queue_has_one_lock_owner_per_group(clock) -> None:
    locks = QueueLocks(clock)
    assert locks.lock("G", "one", ungenerated(QUEUES[:2])) == QUEUES[:2]
    assert locks.lock("G", "two", ungenerated(QUEUES)) == QUEUES[2:]
    assert locks.lock("H", "two", ungenerated(QUEUES)) == QUEUES


def test_lock_expires_60_seconds_after_its_last_renewal(clock) -> None:
    locks = QueueLocks(clock)
    locks.lock("G", "one", ungenerated(QUEUES[:2]))
    clock.advance(59_000)
    assert locks.lock("G", "one", ungenerated(QUEUES[:1])) == QUEUES[:1]
    clock.advance(1_000)
    locks.expire()
    assert locks.lock("G", "two", ungenerated(QUEUES[:2])) == [QUEUES[1]]


def test_only_the_owner_can_unlock(clock) -> None:
    locks = QueueLocks(clock)
    locks.lock("G", "one", ungenerated(QUEUES))
    locks.unlock("G", "two", QUEUES)
    assert locks.lock("G", "two", ungenerated(QUEUES)) == []
    locks.unlock("G", "one", QUEUES)
    assert locks.lock("G", "two", ungenerated(QUEUES)) == QUEUES


def test_later_generation_takes_over_the_lock_of_an_earlier_one(clock) -> None:
    locks = QueueLocks(clock)
    assert locks.lock("G", "one", [(QUEUES[0], 5)]) == QUEUES[:1]
    assert locks.lock("G", "two", [(QUEUES[0], 5)]) == []
    assert locks.lock("G", "java", [(QUEUES[0], 0)]) == [], "a member without generation waits"
    assert locks.lock("G", "two", [(QUEUES[0], 6)]) == QUEUES[:1]
    assert locks.lock("G", "one", [(QUEUES[0], 5)]) == []


def test_no_generation_takes_over_the_lock_of_a_java_member(clock) -> None:
    locks = QueueLocks(clock)
    assert locks.lock("G", "java", ungenerated(QUEUES[:1])) == QUEUES[:1]
    assert locks.lock("G", "one", [(QUEUES[0], 9)]) == []
    clock.advance(60_000)
    assert locks.lock("G", "one", [(QUEUES[0], 9)]) == QUEUES[:1]


def test_copied_locks_expire_when_those_of_the_master_would(clock) -> None:
    master, slave = QueueLocks(clock), QueueLocks(clock)
    master.lock("G", "one", [(QUEUES[0], 0), (QUEUES[1], 5)])
    clock.advance(20_000)
    slave.lock("G", "former", ungenerated(QUEUES[2:]))
    slave.replace_all(decode_held_locks(encode_held_locks(chain(*master.held()))))
    assert slave.lock("G", "two", [(QUEUES[0], 0), (QUEUES[1], 4), (QUEUES[2], 0)]) == QUEUES[2:]
    assert slave.lock("G", "two", [(QUEUES[1], 6)]) == QUEUES[1:2]
    clock.advance(39_999)
    assert slave.lock("G", "two", ungenerated(QUEUES[:1])) == []
    clock.advance(1)
    assert slave.lock("G", "two", ungenerated(QUEUES[:1])) == QUEUES[:1]


def test_saved_locks_expire_while_the_process_is_down(tmp_path: Path, clock) -> None:
    file = LockFile(tmp_path, clock)
    assert file.load() == []
    file.save([HeldLock("G", "one", QUEUES[0], 5, 30_000), HeldLock("G", "one", QUEUES[1], 5, 60_000)])
    clock.advance(30_000)
    assert LockFile(tmp_path, clock).load() == [HeldLock("G", "one", QUEUES[1], 5, 30_000)]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"locks": []}', b'{"locks": [1], "savedMs": 1}'])
def test_damaged_file_of_locks_is_reported(tmp_path: Path, clock, content: bytes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/raymqQueueLocks.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"raymqQueueLocks\.json"):
        LockFile(tmp_path, clock).load()


def test_clients_lock_and_unlock_over_the_socket(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        async def ask(code: int, client_id: str) -> object:
            answer = await peer.ask(code, body=LockRequest("G", client_id, QUEUES[:1]).encode())
            assert answer.code == ResponseCode.SUCCESS
            return orjson.loads(answer.body) if answer.body else None

        mine = {"lockOKMQSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]}
        assert await ask(RequestCode.LOCK_BATCH_MQ, "one") == mine
        assert await ask(RequestCode.LOCK_BATCH_MQ, "two") == {"lockOKMQSet": []}
        assert await ask(RequestCode.UNLOCK_BATCH_MQ, "one") is None
        assert await ask(RequestCode.LOCK_BATCH_MQ, "two") == mine

    with_broker(story, settings_of(tmp_path))


def test_generations_that_do_not_match_the_queues_are_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for generations in ([1, 2], [-1], [1 << 70], ["x"], "x"):
            body = {
                "consumerGroup": "G",
                "clientId": "c",
                "mqSet": [{"topic": "T"}],
                "generations": generations,
            }
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
            assert answer.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
            assert "generations" in (answer.remark or "")

    with_broker(story, settings_of(tmp_path))


def test_invalid_lock_request_is_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for body in (b"", b"[]", b'{"mqSet": 7}'):
            answer = await peer.ask(RequestCode.LOCK_BATCH_MQ, body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark

    with_broker(story, settings_of(tmp_path))
