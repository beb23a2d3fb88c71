"""Queue locks: exclusive ownership of queues by the members of a group that consume in order.

A member that consumes in order locks its queues with LOCK_BATCH_MQ before it pulls from them, renews the
locks every 20 s, and releases them with UNLOCK_BATCH_MQ. A lock expires 60 s after its last renewal. These
are RocketMQ's periods, on which its clients rely. When a member's connection closes, its locks stay until
they expire, because the member may still process messages.

Python members name the generation under which the rebalancer assigned a queue. A later generation takes over
the lock of an earlier one, because the rebalancer has assigned it only after the former owner had released
the queue or its lease had expired. So a queue of a killed member is consumed again after its lease, not after
60 s. Java members have no generation (0): only their release or the expiry ends their locks.

With access control, the owner of a lock is a client id and the user that locked the queue: a client id that
another user names neither renews nor releases the lock.

A slave copies the locks of its master: after its promotion no other consumer gets a queue before the lock
expires. Because a promotion restarts the process, the slave saves the copy (`LockFile`). Masters save no
locks, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from actors.bounds import AtLimit, Bound, Use
from actors.broker.core.table_names import LOCK
from actors.transport.request import Cost, OnSlave, RequestContext, RequestRow, UserOf
from actors.transport.slices import Steps
from actors.wire.bodies.locks import (
    HeldLock,
    LockRequest,
    encode_held_locks,
    encode_locked,
    held_locks,
)
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.targets import Action, DecodedRequest, Resource, Target, on_cluster
from store.common.clock import NS_PER_MS, Clock
from store.common.json_file import JsonConfigFile
from store.message.json_fields import typed
from store.message.message_queue import MessageQueue

LOCKS: Final = Bound(
    "queue_locks",
    100_000,
    AtLimit.REFUSE,
    "Locks of queues; existing groups may lock existing queues also above the limit.",
)
LOCK_TIMEOUT_NS = 60_000_000_000
"""Time after its last renewal at which a lock expires."""
QUEUES_PER_STEP = 500
FILE_NAME = "raymqQueueLocks.json"


class _Lock(NamedTuple):
    owner: str
    until_ns: int
    generation: int

    def may_be_taken(self, client_id: str, generation: int, now_ns: int) -> bool:
        """Return True if `client_id` may lock the queue under `generation`."""
        is_superseded = 0 < self.generation < generation
        return self.owner == client_id or self.until_ns <= now_ns or is_superseded


class QueueLocks:
    """The queue locks of one broker, by group."""

    def __init__(
        self,
        clock: Clock,
        user_of: UserOf = lambda context: None,
        is_known: Callable[[str, MessageQueue], bool] = lambda group, queue: False,
    ) -> None:
        """Create the object without locks.

        `user_of` returns the user that signed a request. `is_known` returns True if a group and a queue
        exist: then the queue can be locked even if clients have LOCKS.limit locks.
        """
        self._clock = clock
        self._user_of = user_of
        self._is_known = is_known
        self.changes = 0
        """Increases with each lock that is acquired or released; not by renewals."""
        self._count = 0
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (LOCKS.use(lambda: self._count),)

    def lock(
        self, group: str, client_id: str, queues: Iterable[tuple[MessageQueue, int]]
    ) -> list[MessageQueue]:
        """Lock the queues that no other client holds, or renew their locks. Return the queues now held.

        Each queue comes with the generation of its assignment, or 0.
        """
        now_ns = self._clock.monotonic_ns()
        locks = self._groups.setdefault(group, {})
        taken = []
        for queue, generation in queues:
            held = locks.get(queue)
            if held is None:
                if self._count >= LOCKS.limit and not self._is_known(group, queue):
                    continue
                self._count += 1
            if held is None or held.may_be_taken(client_id, generation, now_ns):
                if held is None or held.owner != client_id:
                    self.changes += 1
                locks[queue] = _Lock(client_id, now_ns + LOCK_TIMEOUT_NS, generation)
                taken.append(queue)
        if not locks:
            del self._groups[group]
        return taken

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of this client; queues that another client holds stay locked."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.owner == client_id:
                del locks[queue]
                self._count -= 1
                self.changes += 1
        if not locks:
            self._groups.pop(group, None)

    def __len__(self) -> int:
        """Return the number of locks, including those that expired since the last call of `expire`."""
        return self._count

    def held(self) -> Iterator[list[HeldLock]]:
        """Yield the locks of each group that have not expired."""
        for group, locks in list(self._groups.items()):
            now_ns = self._clock.monotonic_ns()
            yield [
                HeldLock(group, lock.owner, queue, lock.generation, -(-(lock.until_ns - now_ns) // NS_PER_MS))
                for queue, lock in locks.items()
                if lock.until_ns > now_ns
            ]

    def replace_all(self, locks: Iterable[HeldLock]) -> None:
        """Replace all locks by copies of a master's."""
        now_ns, longest_ms = self._clock.monotonic_ns(), LOCK_TIMEOUT_NS // NS_PER_MS
        groups: dict[str, dict[MessageQueue, _Lock]] = {}
        for group, owner, queue, generation, remaining_ms in locks:
            until_ns = now_ns + min(remaining_ms, longest_ms) * NS_PER_MS
            groups.setdefault(group, {})[queue] = _Lock(owner, until_ns, generation)
        self._groups = groups
        self._count = sum(map(len, groups.values()))

    def replace_group(self, group: str, locks: Iterable[HeldLock]) -> None:
        """Replace the locks of one group by those of another replica."""
        others = [lock for held in self.held() for lock in held if lock.group != group]
        self.replace_all([*others, *locks])

    def is_orderly(self, group: str) -> bool:
        """Return True if any queue is locked for the group, so its members consume in order."""
        now_ns = self._clock.monotonic_ns()
        return any(lock.until_ns > now_ns for lock in self._groups.get(group, {}).values())

    def expire(self) -> None:
        """Remove expired locks; call every few seconds."""
        now_ns = self._clock.monotonic_ns()
        for group, locks in list(self._groups.items()):
            alive = {queue: lock for queue, lock in locks.items() if lock.until_ns > now_ns}
            if alive:
                self._groups[group] = alive
            else:
                del self._groups[group]
        self._count = sum(map(len, self._groups.values()))

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, cost = RequestCode, Cost.CLIENT
        return (
            RequestRow(code.LOCK_BATCH_MQ, self.lock_batch, None, _targets, cost, changes=(LOCK,)),
            RequestRow(code.UNLOCK_BATCH_MQ, self.unlock_batch, None, _targets, cost, changes=(LOCK,)),
            RequestRow(
                RayMQRequestCode.GET_ALL_QUEUE_LOCKS,
                self.get_all,
                None,
                on_cluster(Action.GET),
                on_slave=OnSlave.SERVED,
            ),
        )

    def lock_batch(self, context: RequestContext) -> None:
        """Handle LOCK_BATCH_MQ: lock or renew queues, and return those that the client now holds."""
        context.work(self._lock_batch(context))

    def _lock_batch(self, context: RequestContext) -> Steps:
        request = LockRequest.decode(context.command.body)
        owner = self._owner(context, request)
        yield
        locks, taken = request.locks(), []
        for at in range(0, len(locks), QUEUES_PER_STEP):
            taken += self.lock(request.group, owner, locks[at : at + QUEUES_PER_STEP])
            yield
        return RemotingCommand.response(body=encode_locked(taken))

    def unlock_batch(self, context: RequestContext) -> None:
        """Handle UNLOCK_BATCH_MQ: release the queues that the client holds."""
        context.work(self._unlock_batch(context))

    def _unlock_batch(self, context: RequestContext) -> Steps:
        request = LockRequest.decode(context.command.body)
        owner = self._owner(context, request)
        yield
        queues = request.queues
        for at in range(0, len(queues), QUEUES_PER_STEP):
            self.unlock(request.group, owner, queues[at : at + QUEUES_PER_STEP])
            yield
        return RemotingCommand.response()

    def get_all(self, context: RequestContext) -> None:
        """Handle GET_ALL_QUEUE_LOCKS: return all locks to a slave."""
        context.work(self._get_all())

    def _get_all(self) -> Steps:
        found = []
        for locks in self.held():
            found += locks
            yield
        return RemotingCommand.response(body=encode_held_locks(found))

    def _owner(self, context: RequestContext, request: LockRequest) -> str:
        user = self._user_of(context)
        return request.client_id if user is None else f"{request.client_id}\0{user}"


class LockFile:
    """The locks that a slave copied last, and the time of the copy: `config/raymqQueueLocks.json`."""

    def __init__(self, store_root: Path, clock: Clock) -> None:
        self._file = JsonConfigFile(store_root / "config" / FILE_NAME)
        self._clock = clock

    def load(self) -> list[HeldLock]:
        """Return the saved locks that have not expired since. Raises StoreError if the file is damaged."""
        return self._file.read(self._parse) or []

    def save(self, locks: Iterable[HeldLock]) -> None:
        """Replace the saved locks. Raises OSError."""
        self._file.save_text(encode_held_locks(locks, savedMs=self._clock.wall_ms()))

    def _parse(self, content: dict[str, Any]) -> list[HeldLock]:
        passed_ms = max(0, self._clock.wall_ms() - typed(content.get("savedMs"), int, "savedMs"))
        return [
            lock._replace(remaining_ms=lock.remaining_ms - passed_ms)
            for lock in held_locks(content)
            if lock.remaining_ms > passed_ms
        ]


def _targets(context: DecodedRequest) -> Iterable[Target]:
    request = LockRequest.decode(context.command.body)
    yield Target(Resource.GROUP, request.group, Action.SUB)
    for topic in sorted({queue.topic for queue in request.queues}):
        yield Target(Resource.TOPIC, topic, Action.SUB)
