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
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final

from actors.broker.core.table_spec import Apply, TableCopy
from actors.broker.replication.ha.ha_client import bounds_of
from actors.transport.client import RemotingClient
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode, request_name
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import ProtocolError, Refused, RemotingError
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.buffers import Buffer
from store.message.json_fields import typed
from store.message.json_text import parse_rocketmq_json
from store.message_store import MessageStore
from store.ownership.first_copy import end_first_copy, is_first_copy
from store.store_errors import StoreError

_log = get_logger(__name__)

SYNC_INTERVAL_MS: Final = 10_000
POLL_INTERVAL_MS: Final = 1_000
"""How often a slave requests the versions of the tables, to copy changed ones at once."""
REQUEST_TIMEOUT_MS: Final = 5_000


@dataclass(slots=True)
class _Copy:
    """The copy of one table.

    Attributes:
        table: How it is requested and decoded.
        apply: Applies the table; False: not now, after a later copy.
        is_copied: True if it was copied since the slave has connected, or if the master does not have it.
        is_offered: False if the master does not know the request.
        is_failing: True if the last request failed.
        waiting: The CommitLog offset that the slave must confirm first, and the table that waits for it.
    """

    table: TableCopy
    apply: Apply
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
        copies: Iterable[tuple[TableCopy, Apply]],
        master: Callable[[], str],
    ) -> None:
        """Create the object.

        Args:
            client: sends the requests to the master.
            clock: the time of the tables' later changes.
            store: the slave's store.
            copies: the tables, with the function that applies each.
            master: returns the address of the master that the slave follows; empty if it follows none.
        """
        self._client = client
        self._clock = clock
        self._store = store
        self._master = master
        self._wanted = asyncio.Event()
        self._versions: dict[int, int] = {}
        """Versions of the master's tables at the last call of `copy_changed`."""
        self._outdated: set[int] = set()
        """Tables that had changed then."""
        self._waiting_from = ""
        self._copies = [_Copy(table, apply) for table, apply in copies]
        self._changes = _Copy(VERSIONS, self._changed)

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
        return ", ".join(request_name(copy.table.code) for copy in self._copies if not copy.is_copied)

    async def run(self) -> None:
        """Copy the tables every SYNC_INTERVAL_MS, on request and after changes, until it is cancelled."""
        self._forget_waiting()
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
        await self.copy_from(master, lambda copy: copy.table.code in self._outdated)

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
            if self._store.positions.confirmed < end or not await _is_applied(copy, table):
                copy.waiting = end, table  # a newer table would wait longer
            else:
                copy.is_copied = True
        except (ProtocolError, Refused, RemotingError, StoreError, OSError, ValueError) as error:
            _note_failure(copy, master, error)
        else:
            copy.is_failing = False

    async def _fetch(self, copy: _Copy, master: str) -> tuple[int, Any]:
        """Return a table, and the CommitLog offset that the slave must have confirmed to apply it."""
        response = await self._client.ask(master, RemotingCommand(copy.table.code), REQUEST_TIMEOUT_MS)
        # In a thread: thousands of topics take longer than a turn may.
        table = await asyncio.to_thread(copy.table.decode, bytes(response.body), self._clock)
        # After the table: its offsets are of messages that the master has by now.
        return (await bounds_of(self._client, master)).end if copy.table.follows_log else 0, table

    def _changed(self, versions: dict[int, int]) -> None:
        self._outdated.update(
            code for code, version in versions.items() if self._versions.get(code) != version
        )
        self._versions = versions


async def _is_applied(copy: _Copy, table: Any) -> bool:
    outcome = copy.apply(table)
    if isawaitable(outcome):
        await outcome
    return outcome is not False


def _note_failure(copy: _Copy, master: str, error: Exception) -> None:
    code = copy.table.code
    is_refused = isinstance(error, Refused) and error.code == ResponseCode.SYSTEM_ERROR
    if isinstance(error, Refused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        # A master of RocketMQ, which logs such requests as errors, or of an older RayMQ.
        copy.is_offered, copy.is_copied = False, True
        _log.info("metadata_not_offered", request=request_name(code), master=master)
        return
    if is_refused and isinstance(code, RequestCode):
        copy.is_copied = True  # RocketMQ's masters have no such table while it is empty
    if not copy.is_failing:
        copy.is_failing = True
        _log.warning("metadata_copy_failed", request=request_name(code), master=master, error=str(error))


def decode_versions(body: Buffer) -> dict[int, int]:
    """Return the versions in the response of GET_TABLE_VERSIONS, by request code. Raises ValueError."""
    content = parse_rocketmq_json(body)
    return {int(code): typed(version, int, code) for code, version in content.items()}


VERSIONS: Final = TableCopy(
    RayMQRequestCode.GET_TABLE_VERSIONS, lambda body, clock: decode_versions(body), lambda parts: None
)
"""The versions of the tables are requested as a table is."""
