"""Queue locks: which member of a group may consume a queue in order (LOCK_BATCH_MQ 41, UNLOCK_BATCH_MQ 42).

A member that consumes in order locks its queues here before it pulls them, and renews the locks every 20 s. A
lock expires after 60 s without renewal: RocketMQ's figures, which its clients rely on. The locks of a member
that died stay until then, because it may still process messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from actors.remoting.bodies.locks import LockRequest, encode_locked
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.request import Cost, RequestContext, RequestRow
from actors.remoting.targets import Action, DecodedRequest, Resource, Target
from store.clock import Clock
from store.message.message_queue import MessageQueue

LOCK_LIVES_NS = 60_000_000_000


class _Lock(NamedTuple):
    owner: str
    until_ns: int


class QueueLocks:
    """The locks of one broker's queues, by group."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Lock or renew queues that no other client holds, and return those that this client now holds."""
        now_ns = self._clock.monotonic_ns()
        locks = self._groups.setdefault(group, {})
        taken = []
        for queue in queues:
            held = locks.get(queue)
            if held is None or held.owner == client_id or held.until_ns <= now_ns:
                locks[queue] = _Lock(client_id, now_ns + LOCK_LIVES_NS)
                taken.append(queue)
        return taken

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that this client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.owner == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def is_orderly(self, group: str) -> bool:
        """Return True if a queue is locked for the group: its members consume in order."""
        now_ns = self._clock.monotonic_ns()
        return any(lock.until_ns > now_ns for lock in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Drop expired locks; call every few seconds."""
        now_ns = self._clock.monotonic_ns()
        for group, locks in list(self._groups.items()):
            alive = {queue: lock for queue, lock in locks.items() if lock.until_ns > now_ns}
            if alive:
                self._groups[group] = alive
            else:
                del self._groups[group]

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, cost = RequestCode, Cost.CLIENT
        return (
            RequestRow(code.LOCK_BATCH_MQ, self.lock_batch, None, _targets, cost),
            RequestRow(code.UNLOCK_BATCH_MQ, self.unlock_batch, None, _targets, cost),
        )

    def lock_batch(self, context: RequestContext) -> RemotingCommand:
        """LOCK_BATCH_MQ: respond with the queues that the client now holds."""
        request = LockRequest.decode(context.command.body)
        taken = self.lock(request.group, request.client_id, request.queues)
        return RemotingCommand.response(body=encode_locked(taken))

    def unlock_batch(self, context: RequestContext) -> RemotingCommand:
        """UNLOCK_BATCH_MQ."""
        request = LockRequest.decode(context.command.body)
        self.unlock(request.group, request.client_id, request.queues)
        return RemotingCommand.response()


def _targets(context: DecodedRequest) -> Iterable[Target]:
    request = LockRequest.decode(context.command.body)
    yield Target(Resource.GROUP, request.group, Action.SUB)
    for topic in sorted({queue.topic for queue in request.queues}):
        yield Target(Resource.TOPIC, topic, Action.SUB)
