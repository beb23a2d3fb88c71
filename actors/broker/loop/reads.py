"""Reads: reading the store on the loop, where nothing may wait for the disk (design law 4).

A request that must see every message acknowledged before it waits until these are dispatched (`Turns`). A
read is tried at once. When the page cache lacks something of it, a thread brings that in, and the read is
tried again: so it sees the store as it is then, whatever has been deleted or cut meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from actors.broker.loop.off_loop import OffLoop
from actors.broker.loop.turns import Turns
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.clock import NS_PER_MS
from store.disk.residency import Cold, FileRange, WarmJob
from store.message_store import MessageStore
from store.reading.queries import KeyQuery

Result = TypeVar("Result")

# A pull asks for units, then records, of two files at most. When pages go as fast as they come, memory is
# short: then one wait on the loop is better than a read that never ends.
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
        """`admit` raises Refused where no more may be read for a peer that has waited; `turns` dispatch what
        is to be read.
        """
        self.admit = admit
        self.catch_up = turns.catch_up
        self._when_caught_up = turns.when_caught_up
        self._store = store
        self._off_loop = off_loop
        self.cold = 0

    @property
    def waiting(self) -> int:
        """How many reads wait for the disk."""
        return len(self._off_loop)

    @property
    def longest_wait_ms(self) -> int:
        """For how long the first of those that have no thread yet has waited."""
        return self._off_loop.longest_wait_ms

    @property
    def longest_ms(self) -> int:
        """How long the slowest of the reads that had to wait for the disk has taken."""
        return self._off_loop.longest_ns // NS_PER_MS

    async def caught_up(self) -> None:
        """Return when all that is confirmed by now can be read. Raises Refused if that does not come."""
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
        """Handle a request later: `catch_up` was not enough."""
        self._when_caught_up().add_done_callback(
            lambda ended: self._handle_later(context, handle, ended.exception())
        )

    def _handle_later(
        self,
        context: RequestContext,
        handle: Callable[[RequestContext], RemotingCommand | None],
        error: BaseException | None,
    ) -> None:
        if isinstance(error, Exception):
            context.refuse(error)
            return

        def handle_in_turn(connection: Connection) -> None:
            try:
                self.admit(connection)
                response = handle(context)
                if response is not None:
                    context.reply(response)
            except Exception as failure:  # noqa: BLE001 - the failure of one request is its own response
                context.refuse(failure)

        # In its turn: many may have waited for the same step, and their peers may be behind.
        context.connection.when_drained(handle_in_turn)

    def now(self, read: Callable[[], Result], tries_left: int) -> Result:
        """What `read` gives. Raises Cold when it would have to wait, unless no tries are left."""
        if tries_left <= 0:
            return read()
        with self._store.resident_only:
            return read()

    def serve(
        self,
        context: RequestContext,
        read: Callable[[], Result],
        answer: Callable[[Result], RemotingCommand | None],
        tries: int = TRIES_OF_A_PULL,
    ) -> None:
        """Answer a request with what `answer` makes of what `read` gives: at once, or when it is there.

        Raises what they raise at once; what comes later is told to the peer.
        """
        try:
            found = self.now(read, tries)
        except Cold as cold:
            self.cold += 1
            self._off_loop.submit(
                WarmJob(cold.ranges).run,
                lambda error: self._serve_again(context, read, answer, tries - 1, error),
            )
            return
        response = answer(found)
        if response is not None:
            context.reply(response)

    def _serve_again(
        self,
        context: RequestContext,
        read: Callable[[], Result],
        answer: Callable[[Result], RemotingCommand | None],
        tries: int,
        error: Exception | None,
    ) -> None:
        if error is not None:
            if not context.connection.is_closed:
                context.refuse(error)
            return

        def try_again(connection: Connection) -> None:
            try:
                self.admit(connection)
                self.serve(context, read, answer, tries)
            except Exception as failure:  # noqa: BLE001 - one read's damage is its own answer, and ends no other's
                context.refuse(failure)

        # In its turn: many may come from the disk at once, and their peers may be behind.
        context.connection.when_drained(try_again)

    def bring(self, cold: Cold, done: Callable[[], None]) -> None:
        """Bring in what was lacking, for one who tries again later; that others wait too is no failure."""
        self.cold += 1
        try:
            self._off_loop.submit(WarmJob(cold.ranges).run, lambda _: done())
        except Refused:
            done()

    async def settled(self, read: Callable[[], Result], tries: int = TRIES_OF_A_SEARCH) -> Result:
        """What `read` gives, when all that it looks at is there. Raises what it raises."""
        while True:
            try:
                return self.now(read, tries)
            except Cold as cold:
                tries -= 1
                self.cold += 1
                await self._off_loop.run(WarmJob(cold.ranges).run)

    async def all_of(self, reads: Iterable[Callable[[], Result]]) -> list[Result]:
        """What each of many small reads gives; what they lack is brought in together. Others go first after
        some of them. Raises what they raise.
        """
        found: list[Result] = []
        left = iter(reads)
        while some := list(islice(left, READS_A_SLICE)):
            await asyncio.sleep(0)
            tries = TRIES_OF_A_SEARCH
            while True:
                results, lacks = self._all_now(some, tries)
                if not lacks:
                    break
                tries -= 1
                self.cold += 1
                await self._off_loop.run(WarmJob(lacks).run)
            found += results
        return found

    def _all_now(
        self, reads: Sequence[Callable[[], Result]], tries_left: int
    ) -> tuple[list[Result], list[FileRange]]:
        """What they give that need not wait, and what the others lack."""
        results: list[Result] = []
        lacks: list[FileRange] = []
        for read in reads:
            try:
                results.append(self.now(read, tries_left))
            except Cold as cold:
                lacks += cold.ranges
        return results, lacks

    async def search(self, query: KeyQuery | None) -> list[memoryview]:
        """The records that a search by key finds; the index is looked up in a thread."""
        if query is None:
            return []
        await self._off_loop.run(query.find)
        while not await self.settled(query.look):  # noqa: ASYNC110 - it is no event that is waited for
            await asyncio.sleep(0)  # others first: thousands of candidates may share one hash
        return query.records
