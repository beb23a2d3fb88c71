"""Reads: reads the store on the event loop without waiting for the disk (docs/design.md#invariant-4).

    read ── all pages resident ───────────────────────────────────► result
      ▲        └─ NotResident ──► a thread loads those pages ─┐
      └───────────────────────────────────────────────────────┘

After the pages are loaded, the whole read is repeated, so it sees all deletions and truncations in the
meantime. A request that must see every message acknowledged before it first waits for dispatch (`EndOfTurn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TypeVar

from actors.broker.core.loop.end_of_turn import EndOfTurn
from actors.broker.core.loop.off_loop import OffLoop
from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS
from store.common.logs import get_logger
from store.disk.residency import FileRange, NotResident, WarmJob
from store.message_store import MessageStore
from store.reading.queries import KeyQuery
from store.store_errors import StoreError

_log = get_logger(__name__)

Result = TypeVar("Result")

# A pull reads units, then records, of two files at most. If pages are evicted as fast as they are loaded, the
# last attempt waits for the disk on the loop: better than a read that never ends.
PULL_ATTEMPTS = 6
# Each step of a binary search by time reads one unit and one record.
SEARCH_ATTEMPTS = 200
# Take about a millisecond.
READS_PER_SLICE = 128


def stored_record(store: MessageStore, offset: int) -> memoryview:
    """Return the record at a CommitLog offset. Raises Refused if no confirmed and valid one starts there."""
    try:
        return store.record_at(offset)
    except StoreError as error:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"no message at CommitLog offset {offset}: {error.reason}"
        ) from error


class Reads:
    """The reads of one broker's store that must not block its loop."""

    def __init__(
        self,
        store: MessageStore,
        off_loop: OffLoop,
        admit: Callable[[Connection], None],
        end_of_turn: EndOfTurn,
    ) -> None:
        """Create the reader.

        Args:
            store: the store to read.
            off_loop: the threads that load pages.
            admit: called before a delayed request is handled; raises Refused if clients leave too many
                response bytes unread.
            end_of_turn: dispatches messages.
        """
        self.admit = admit
        self.catch_up = end_of_turn.catch_up
        self._when_caught_up = end_of_turn.when_caught_up
        self._store = store
        self._off_loop = off_loop
        self._loading: set[asyncio.Task[None]] = set()
        self.cold = 0
        """Number of reads that had to wait for the disk."""

    @property
    def waiting(self) -> int:
        """Number of reads that are waiting for the disk."""
        return len(self._off_loop)

    @property
    def longest_wait_ms(self) -> int:
        """How long the oldest read in the queue has waited for a thread."""
        return self._off_loop.longest_wait_ms

    @property
    def longest_ms(self) -> int:
        """Duration of the longest wait for the disk."""
        return self._off_loop.longest_ns // NS_PER_MS

    async def caught_up(self) -> None:
        """Wait until all messages confirmed by now can be read. Raises Refused if dispatch fails."""
        if not self.catch_up():
            await self._when_caught_up()

    def when_caught_up(
        self, context: RequestContext, handle: Callable[[RequestContext], RemotingCommand | None]
    ) -> RemotingCommand | None:
        """Call `handle(context)` when all messages confirmed by now can be read.

        If that is now, returns the response and lets exceptions of `handle` propagate. Otherwise returns
        None; the response, or an error response, is sent later.
        """
        if self.catch_up():
            return handle(context)
        self.wait_for_dispatch(context, handle)
        return None

    def wait_for_dispatch(
        self, context: RequestContext, handle: Callable[[RequestContext], RemotingCommand | None]
    ) -> None:
        """Call `handle(context)` after dispatch; to be used if `catch_up` has returned False."""

        async def wait() -> None:
            await caught_up
            self._respond_when_drained(context, lambda: handle(context))

        caught_up = self._when_caught_up()
        context.spawn(wait())

    async def read(self, read: Callable[[], Result], attempts: int = SEARCH_ATTEMPTS) -> Result:
        """Call `read` until all pages that it needs are resident, and return its result.

        The last of `attempts` calls may wait for the disk on the loop. Exceptions of `read` propagate.
        """
        while True:
            try:
                return self._now(read, attempts)
            except NotResident as cold:
                attempts -= 1
                await self._load(cold)

    def serve(
        self,
        context: RequestContext,
        read: Callable[[], Result],
        respond: Callable[[Result], RemotingCommand | None],
        attempts: int = PULL_ATTEMPTS,
    ) -> None:
        """Respond to a request with `respond(read())`, where `respond` may return None and reply later.

        If all pages are resident, this happens immediately, without a task, and exceptions propagate.
        Otherwise a task loads the pages; an exception then becomes the response.
        """

        async def wait(cold: NotResident) -> None:
            await self._load(cold)
            self._respond_when_drained(context, lambda: self.serve(context, read, respond, attempts - 1))

        try:
            found = self._now(read, attempts)
        except NotResident as cold:
            context.spawn(wait(cold))
            return
        response = respond(found)
        if response is not None:
            context.reply(response)

    async def all_of(self, reads: Iterable[Callable[[], Result]]) -> list[Result]:
        """Return the results of many small reads, and let other requests run between slices of them.

        The missing pages of a slice are loaded together. Exceptions of the reads propagate.
        """
        found: list[Result] = []
        left = iter(reads)
        while some := list(islice(left, READS_PER_SLICE)):
            await asyncio.sleep(0)
            found += await self.read(partial(_each, some))
        return found

    async def search(self, query: KeyQuery | None) -> list[memoryview]:
        """Return the records that a search by key finds; a thread reads the index. Empty without a query."""
        if query is None:
            return []
        await self._off_loop.run(query.find)
        while not await self.read(query.check_candidates):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # lets other requests run: thousands of candidates may share one hash
        return query.records

    def load_pages(self, cold: NotResident, done: Callable[[], None]) -> None:
        """Load missing pages, then call `done`, also after an error: the caller reads again."""

        async def load() -> None:
            try:
                await self._load(cold)
            except Refused:
                pass  # the caller's next read raises NotResident again
            except Exception:  # noqa: BLE001 - logged; the caller reads again
                _log.exception("cold_read_failed", ranges=cold.ranges)
            finally:
                done()

        task = asyncio.get_running_loop().create_task(load())
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    async def _load(self, cold: NotResident) -> None:
        self.cold += 1
        await self._off_loop.run(WarmJob(cold.ranges).run)

    def _now(self, read: Callable[[], Result], attempts_left: int) -> Result:
        """Return the result of `read`. Raises NotResident if it would wait and attempts are left."""
        if attempts_left <= 0:
            return read()
        with self._store.resident_only:
            return read()

    def _respond_when_drained(
        self, context: RequestContext, handle: Callable[[], RemotingCommand | None]
    ) -> None:
        """Call `handle` and reply when the connection has sent its earlier responses.

        Many requests may have waited for the same pages, and their clients may read slowly.
        """

        def handle_now(connection: Connection) -> None:
            try:
                self.admit(connection)
                response = handle()
                if response is not None:
                    context.reply(response)
            except Exception as error:  # noqa: BLE001 - becomes the response
                context.refuse(error)

        context.connection.when_drained(handle_now)


def _each(reads: Iterable[Callable[[], Result]]) -> list[Result]:
    """Return the results of all reads. Raises NotResident with the missing pages of all of them."""
    results: list[Result] = []
    missing: list[FileRange] = []
    for read in reads:
        try:
            results.append(read())
        except NotResident as cold:
            missing += cold.ranges
    if missing:
        raise NotResident(missing)
    return results
