"""HeldAcks: acks of popped messages are answered when a majority has them on disk.

    acks of one turn ──→ one record of the changed entries ──confirmed──→ the responses

So an ack costs a part of a record, and waits for one flush, as a send does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from actors.broker.build_loop import BrokerLoop
from actors.broker.metadata.acked_offsets import AckedOffsets
from actors.broker.replication.raft.meta_log import MetaLog
from actors.broker.replication.raft.table_kinds import ACKED, OFFSET, ORDER
from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.store_errors import StoreError

_Held = tuple[RequestContext, RemotingCommand]


class HeldAcks:
    """The acks of the present turn of a leader."""

    def __init__(self, loop: BrokerLoop, meta: MetaLog, acked: AckedOffsets) -> None:
        self._loop = loop
        self._store = loop.store
        self._meta = meta
        self._acked = acked
        self._held: list[_Held] = []

    def hold(self, request: RequestContext, response: RemotingCommand) -> None:
        """Send the response when everything is confirmed that was acked up to the end of this turn."""
        self._held.append((request, response))
        self._loop.server.request_tick()

    def end_turn(self) -> None:
        """Log the changes of this turn, before it is confirmed."""
        held, self._held = self._held, []
        written = self._store.positions.written
        error = self._log()
        if self._store.positions.written > written:
            self._loop.flusher.flush_if_idle()
        if error is not None:
            _answer(held, error)
        elif held:
            self._store.on_confirmed(self._store.positions.written, partial(_answer, held))

    def before(self, end_turn: Callable[[], None]) -> Callable[[], None]:
        """Return a function that logs the changes of this turn before it calls `end_turn`."""

        def end() -> None:
            self.end_turn()
            end_turn()

        return end

    def flush_progress(self) -> None:
        """Log all progress, before a transfer of the leadership."""
        self.end_turn()
        self._meta.flush_progress()

    def _log(self) -> StoreError | None:
        """Append what has changed; return the error if that fails."""
        error = self._acked.record()
        groups, chunks = self._acked.take_changes()
        names = [(kind, name) for kind in (OFFSET, ORDER) for name in groups]
        names += [(ACKED, name) for name in chunks]
        return self._meta.log(names) or error if names else error


def _answer(held: Sequence[_Held], error: StoreError | None) -> None:
    """Send the responses; after an error refuse the requests: they are to be repeated."""
    for request, response in held:
        if error is None:
            request.reply(response)
        else:
            request.refuse(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
