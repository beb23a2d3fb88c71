"""MetadataSync: copies the tables of a master to its slave, as RocketMQ's SlaveSynchronize does.

Topics, consumer offsets, delay offsets, progress of the timer, groups and request modes, and from a master of
RayMQ its generations, queue locks, users and policies, each replaced in one step: a slave never answers that
a topic of its master does not exist. If one table cannot be copied, the others are.

A master of RayMQ also has the ends of queues of which its log has no record: the slave's log is a copy.
Offsets, ends and the timer's progress refer to the master's log, whose end the slave may lack. They wait
until it has confirmed all that the master had when they were copied: a slave that is promoted skips nothing
it lacks.

A slave that was empty is no master until all of this was copied once (`store.ownership.first_copy`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from actors.access.access_file import AccessFile
from actors.access.users import AccessTable
from actors.broker.group.queue_locks import LockFile, QueueLocks
from actors.broker.metadata.tables import BrokerTables, generations_from_json
from actors.broker.replication.ha_client import bounds_of
from actors.remoting.bodies.locks import HeldLock, decode_held_locks
from actors.remoting.bodies.queue_ends import QueueEnds
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import ProtocolError, Refused, RemotingError
from store.clock import Clock
from store.logs import get_logger
from store.message.buffers import Buffer
from store.message.json_fields import typed
from store.message.json_text import parse_rocketmq_json
from store.message_store import MessageStore
from store.metadata import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    MessageRequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from store.ownership.first_copy import end_first_copy, is_first_copy
from store.store_errors import StoreError
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import follow_timer

_log = get_logger(__name__)

SYNC_INTERVAL_MS: Final = 10_000
POLL_INTERVAL_MS: Final = 1_000
"""How often a slave requests the versions of the tables, to copy changed ones at once."""
REQUEST_TIMEOUT_MS: Final = 5_000
PROGRESS: Final = frozenset(
    {
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
        RayMQRequestCode.GET_QUEUE_ENDS,
    }
)

_Code = RequestCode | RayMQRequestCode
_Parse = Callable[[bytes], Any]
_Apply = Callable[[Any], Awaitable[bool | None]]


@dataclass(slots=True)
class _Copy:
    """The copy of one table.

    Attributes:
        code: The request of the table.
        parse: Decodes the response.
        apply: Applies the table; False: not now, after a later copy.
        is_copied: True if it was copied since the slave has connected, or if the master does not have it.
        is_offered: False if the master does not know the request.
        is_failing: True if the last request failed.
        waiting: The CommitLog offset that the slave must confirm first, and the table that waits for it.
    """

    code: _Code
    parse: _Parse
    apply: _Apply
    is_copied: bool = False
    is_offered: bool = True
    is_failing: bool = False
    waiting: tuple[int, Any] | None = None


class MetadataSync:
    """Copies the tables of a master; later copies transfer them again, and apply what has changed."""

    def __init__(
        self,
        client: RemotingClient,
        clock: Clock,
        store: MessageStore,
        tables: BrokerTables,
        access: AccessFile | None,
        locks: QueueLocks,
        remove_queues: Callable[[str], Awaitable[None]],
        wake: Callable[[str], None],
        master: Callable[[], str],
    ) -> None:
        """Create the object.

        Args:
            client: sends the requests to the master.
            clock: the time of the tables' later changes.
            store: has the queues of deleted topics.
            tables: the slave's tables.
            access: the slave's users and policies; None if its authentication is disabled.
            locks: the slave's queue locks.
            remove_queues: removes all queues of a topic that the master has deleted.
            wake: completes all held pulls of a topic.
            master: returns the address of the master that the slave follows; empty if it follows none.
        """
        self._client = client
        self._store = store
        self._tables = tables
        self._locks = locks
        self._lock_file = LockFile(store.root, clock)
        self._remove_queues = remove_queues
        self._wake = wake
        self._master = master
        self._wanted = asyncio.Event()
        self._versions: dict[int, int] = {}
        """Versions of the master's tables at the last call of `copy_changed`."""
        self._outdated: set[int] = set()
        """Tables that had changed then."""
        self._waiting_from = ""
        self._timer_checkpoint: TimerCheckpoint | None = None
        """The progress of the master's timer that the store has."""
        code = RequestCode
        groups = _json(SubscriptionGroupTable.from_json, clock=clock)
        self._copies = [
            _Copy(code.GET_ALL_TOPIC_CONFIG, _json(TopicConfigTable.from_json, clock=clock), self._topics),
            _Copy(
                code.GET_ALL_CONSUMER_OFFSET, _json(ConsumerOffsetTable.from_json, clock=clock), self._offsets
            ),
            _Copy(code.GET_ALL_DELAY_OFFSET, _json(DelayOffsetTable.from_json, clock=clock), self._delays),
            _Copy(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groups, self._groups),
            _Copy(code.GET_ALL_MESSAGE_REQUEST_MODE, _json(MessageRequestModeTable.from_json), self._modes),
            _Copy(code.GET_TIMER_CHECK_POINT, TimerCheckpoint.decode, self._timer),
            _Copy(RayMQRequestCode.GET_ALL_GENERATIONS, _generations, self._generations),
            _Copy(RayMQRequestCode.GET_ALL_QUEUE_LOCKS, decode_held_locks, self._queue_locks),
            _Copy(RayMQRequestCode.GET_QUEUE_ENDS, QueueEnds.decode, self._queue_ends),
        ]
        if access is not None:
            users = _Copy(RayMQRequestCode.GET_ALL_USERS, AccessTable.decode, access.replace)
            self._copies.append(users)
        self._changes = _Copy(RayMQRequestCode.GET_TABLE_VERSIONS, decode_versions, self._changed)

    def request(self) -> None:
        """Copy the tables as soon as possible: the slave has connected to its master."""
        self._versions.clear()
        for copy in (*self._copies, self._changes):
            copy.is_copied, copy.is_offered = False, True
        self._wanted.set()

    @property
    def missing(self) -> str:
        """The requests of the tables that a slave, which was empty, has not copied yet; empty if none."""
        if not is_first_copy(self._store.root):
            return ""
        return ", ".join(copy.code.name for copy in self._copies if not copy.is_copied)

    async def run(self) -> None:
        """Copy the tables every SYNC_INTERVAL_MS, on request and after changes, until it is cancelled."""
        self._forget_waiting()
        self._timer_checkpoint = None  # since the last run, this broker may have been a master
        rest_ms = SYNC_INTERVAL_MS
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_MS / 1000):
                    await self._wanted.wait()
            rest_ms -= POLL_INTERVAL_MS
            master = self._master()
            if self._wanted.is_set() or rest_ms <= 0:
                self._wanted.clear()
                rest_ms = SYNC_INTERVAL_MS
                if master:
                    await self.copy_from(master)
            elif master:
                await self.copy_changed(master)
                await self.copy_from(master, lambda copy: copy.waiting is not None)

    async def copy_changed(self, master: str) -> None:
        """Copy the tables that have changed since the last call, except offsets and progress.

        RocketMQ's masters do not report changes.
        """
        self._outdated.clear()
        await self._copy(self._changes, master)
        await self.copy_from(master, lambda copy: copy.code in self._outdated)

    async def copy_from(self, master: str, is_wanted: Callable[[_Copy], bool] = lambda copy: True) -> None:
        """Copy the wanted tables of the broker at the address `master`. A failure is logged once."""
        if master != self._waiting_from:
            self._forget_waiting()
            self._waiting_from = master
        for copy in self._copies:
            if is_wanted(copy):
                await self._copy(copy, master)
        if all(copy.is_copied for copy in self._copies):
            await asyncio.to_thread(end_first_copy, self._store.root)

    def _forget_waiting(self) -> None:
        for copy in self._copies:
            copy.waiting = None

    async def _copy(self, copy: _Copy, master: str) -> None:
        if not copy.is_offered:
            return
        try:
            end, table = copy.waiting or await self._fetch(copy, master)
            copy.waiting = None
            if self._store.positions.confirmed < end or await copy.apply(table) is False:
                copy.waiting = end, table  # a newer table would wait longer
            else:
                copy.is_copied = True
        except (ProtocolError, Refused, RemotingError, StoreError, OSError, ValueError) as error:
            _note_failure(copy, master, error)
        else:
            copy.is_failing = False

    async def _fetch(self, copy: _Copy, master: str) -> tuple[int, Any]:
        """Return a table, and the CommitLog offset that the slave must have confirmed to apply it."""
        response = await self._client.ask(master, RemotingCommand(copy.code), REQUEST_TIMEOUT_MS)
        # In a thread: thousands of topics take longer than a turn may.
        table = await asyncio.to_thread(copy.parse, bytes(response.body))
        # After the table: its offsets are of messages that the master has by now.
        return (await bounds_of(self._client, master)).end if copy.code in PROGRESS else 0, table

    async def _changed(self, versions: dict[int, int]) -> None:
        self._outdated.update(
            code for code, version in versions.items() if self._versions.get(code) != version
        )
        self._versions = versions

    async def _topics(self, table: TopicConfigTable) -> None:
        removed = self._tables.topics.replace_all(table)
        with_queues = {topic for topic, _ in self._store.queues()} if removed else set()
        for topic in removed:
            self._wake(topic)
            if topic in with_queues:
                await self._remove_queues(topic)

    async def _groups(self, table: SubscriptionGroupTable) -> None:
        self._tables.groups.replace_all(table)

    async def _offsets(self, table: ConsumerOffsetTable) -> None:
        self._tables.offsets.replace_all(table)

    async def _generations(self, generations: dict[str, dict[int, int]]) -> None:
        self._tables.offsets.replace_generations(generations)

    async def _queue_locks(self, locks: list[HeldLock]) -> None:
        if locks or len(self._locks):
            self._locks.replace_all(locks)
            await asyncio.to_thread(self._lock_file.save, locks)

    async def _queue_ends(self, found: QueueEnds) -> bool:
        """Continue queues whose records are not in the log. Return False if that is not possible now."""
        return self._store.retention.reserve_ends(found.ends, found.position)

    async def _delays(self, table: DelayOffsetTable) -> None:
        self._tables.delay_offsets.replace_all(table)

    async def _modes(self, table: MessageRequestModeTable) -> None:
        self._tables.request_modes.replace_all(table)

    async def _timer(self, checkpoint: TimerCheckpoint) -> None:
        if checkpoint != self._timer_checkpoint:
            await asyncio.to_thread(follow_timer, self._store.root, checkpoint)
            self._timer_checkpoint = checkpoint


def _note_failure(copy: _Copy, master: str, error: Exception) -> None:
    if isinstance(error, Refused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        # A master of RocketMQ, which logs such requests as errors, or of an older RayMQ.
        copy.is_offered, copy.is_copied = False, True
        _log.info("metadata_not_offered", request=copy.code.name, master=master)
        return
    if isinstance(error, Refused) and error.code == ResponseCode.SYSTEM_ERROR and copy.code in RequestCode:
        copy.is_copied = True  # RocketMQ's masters have no such table while it is empty
    if not copy.is_failing:
        copy.is_failing = True
        _log.warning("metadata_copy_failed", request=copy.code.name, master=master, error=str(error))


def decode_versions(body: Buffer) -> dict[int, int]:
    """Return the versions in the response of GET_TABLE_VERSIONS, by request code. Raises ValueError."""
    content = parse_rocketmq_json(body)
    return {int(code): typed(version, int, code) for code, version in content.items()}


def _generations(body: bytes) -> dict[str, dict[int, int]]:
    content = parse_rocketmq_json(body)
    if not content:
        raise ValueError("generations is missing")
    return generations_from_json(content)


def _json(parse: Callable[..., Any], **arguments: Any) -> _Parse:
    return lambda body: parse(parse_rocketmq_json(body), **arguments)
