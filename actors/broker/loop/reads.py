"""Reads: the reads of a store on the event loop, which must not wait for the disk (design law 4).

    read ── resident ───────────────────────────────────────────────► result
      ▲        └─ NotResident: not resident ──► a thread reads those ranges ─┐
      └───────────────────────────────────────────────────────────────┘

A read is repeated as a whole, so it sees the store as it is then, whatever has been deleted or truncated in
the meantime. A request that must see every message acknowledged before it first waits for dispatch (`Turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TypeVar

from actors.broker.loop.off_loop import OffLoop
from actors.broker.loop.turns import Turns
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.clock import NS_PER_MS
from store.disk.residency import FileRange, NotResident, WarmJob
from store.logs import get_logger
from store.message_store import MessageStore
from store.reading.queries import KeyQuery

_log = get_logger(__name__)

Result = TypeVar("Result")

# A pull reads units, then records, of two files at most. If pages are evicted as fast as they are read,
# memory is short: one wait on the loop is then better than a read that never ends.
TRIES_OF_A_PULL = 6
# A search by time looks at a unit and a record in each of its steps.
TRIES_OF_A_SEARCH = 200
# About a millisecond.
READS_A_SLICE = 128


class Reads:
    """The reads of one broker that must not hold its loop."""

    def __init__(
        self,
        store: MessageStore,
        off_loop: OffLoop,
        admit: Callable[[Connection], None],
        turns: Turns,
    ) -> None:
        """`admit` raises Refused if no more may be read for a peer that has waited."""
        self.admit = admit
        self.catch_up = turns.catch_up
        self._when_caught_up = turns.when_caught_up
        self._store = store
        self._off_loop = off_loop
        self._bringing: set[asyncio.Task[None]] = set()
        self.cold = 0
        """How many reads have waited for the disk."""

    @property
    def waiting(self) -> int:
        """How many reads wait for the disk."""
        return len(self._off_loop)

    @property
    def longest_wait_ms(self) -> int:
        """How long the first of those without a thread has waited."""
        return self._off_loop.longest_wait_ms

    @property
    def longest_ms(self) -> int:
        """How long the slowest wait for the disk took."""
        return self._off_loop.longest_ns // NS_PER_MS

    async def caught_up(self) -> None:
        """Return when all that is confirmed by now can be read. Raises Refused if dispatch fails."""
        if not self.catch_up():
            await self._when_caught_up()

    def when_caught_up(
        self, context: RequestContext, handle: Callable[[RequestContext], RemotingCommand | None]
    ) -> RemotingCommand | None:
        """Handle a request when all that is confirmed by now can be read: at once, or later in its turn.

        Returns the response, or None if it comes later. Raises what `handle` raises at once; a later error is
        the response.
        """
        if self.catch_up():
            return handle(context)
        self.wait_for_dispatch(context, handle)
        return None

    def wait_for_dispatch(
        self, context: RequestContext, handle: Callable[[RequestContext], RemotingCommand | None]
    ) -> None:
        """Handle a request later, in its turn: `catch_up` was not enough."""

        async def wait() -> None:
            await caught_up
            self._in_turn(context, lambda: handle(context))

        caught_up = self._when_caught_up()
        context.spawn(wait())

    async def read(self, read: Callable[[], Result], tries: int = TRIES_OF_A_SEARCH) -> Result:
        """Return what `read` returns once all that it looks at is resident. Raises what it raises."""
        while True:
            try:
                return self._now(read, tries)
            except NotResident as cold:
                tries -= 1
                await self._bring(cold)

    def serve(
        self,
        context: RequestContext,
        read: Callable[[], Result],
        respond: Callable[[Result], RemotingCommand | None],
        tries: int = TRIES_OF_A_PULL,
    ) -> None:
        """Respond to a request with what `respond` makes of the result of `read`.

        If all is resident, that happens at once and without a task; otherwise later, in its turn. Raises what
        they raise at once; a later error is the response.
        """

        async def wait(cold: NotResident) -> None:
            await self._bring(cold)
            self._in_turn(context, lambda: self.serve(context, read, respond, tries - 1))

        try:
            found = self._now(read, tries)
        except NotResident as cold:
            context.spawn(wait(cold))
            return
        response = respond(found)
        if response is not None:
            context.reply(response)

    async def all_of(self, reads: Iterable[Callable[[], Result]]) -> list[Result]:
        """Return the results of many small reads; other work of the loop runs between slices of them.

        What the reads of a slice lack is brought in together. Raises what they raise.
        """
        found: list[Result] = []
        left = iter(reads)
        while some := list(islice(left, READS_A_SLICE)):
            await asyncio.sleep(0)
            found += await self.read(partial(_each, some))
        return found

    async def search(self, query: KeyQuery | None) -> list[memoryview]:
        """Return the records that a search by key finds; a thread looks them up in the index."""
        if query is None:
            return []
        await self._off_loop.run(query.find)
        while not await self.read(query.check_candidates):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)  # others first: thousands of candidates may share one hash
        return query.records

    def bring(self, cold: NotResident, done: Callable[[], None]) -> None:
        """Bring in what a read lacked, then call `done`, for a caller that reads again later."""

        async def bring() -> None:
            try:
                await self._bring(cold)
            except Refused:
                pass  # the caller's next read lacks the same
            except Exception:  # noqa: BLE001 - logged; the caller reads again
                _log.exception("cold_read_failed", ranges=cold.ranges)
            finally:
                done()

        task = asyncio.get_running_loop().create_task(bring())
        self._bringing.add(task)
        task.add_done_callback(self._bringing.discard)

    async def _bring(self, cold: NotResident) -> None:
        self.cold += 1
        await self._off_loop.run(WarmJob(cold.ranges).run)

    def _now(self, read: Callable[[], Result], tries_left: int) -> Result:
        """Return the result of `read`. Raises NotResident if it would wait and tries are left."""
        if tries_left <= 0:
            return read()
        with self._store.resident_only:
            return read()

    def _in_turn(self, context: RequestContext, handle: Callable[[], RemotingCommand | None]) -> None:
        """Handle a request that has waited in the turn of its connection: many may have waited for the same,
        and their peers may be behind.
        """

        def handle_now(connection: Connection) -> None:
            try:
                self.admit(connection)
                response = handle()
                if response is not None:
                    context.reply(response)
            except Exception as error:  # noqa: BLE001 - a failed request gets its error, and ends no other
                context.refuse(error)

        context.connection.when_drained(handle_now)


def _each(reads: Iterable[Callable[[], Result]]) -> list[Result]:
    """Return the results of all reads. Raises NotResident with all that they lack together."""
    results: list[Result] = []
    lacks: list[FileRange] = []
    for read in reads:
        try:
            results.append(read())
        except NotResident as cold:
            lacks += cold.ranges
    if lacks:
        raise NotResident(lacks)
    return results
