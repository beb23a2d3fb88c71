"""HeldAcks: what consumers report as finished is answered when their group of replicas cannot lose it.

    acks and commits of one turn ──→ one record of the changed entries ──confirmed──→ the responses

So an ack costs a part of a record, and waits for one flush or for the slaves, as a send does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from actors.broker.build_loop import BrokerLoop
from actors.broker.core.metadata.acked_offsets import AckedOffsets
from actors.broker.core.sending.acks import PendingAck
from actors.broker.core.table_names import ACKED, OFFSET, ORDER
from actors.broker.replication.raft.meta_record import Key
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.store_errors import StoreError


class EntryLog(Protocol):
    """Logs entries of tables."""

    def log(self, names: Iterable[Key]) -> StoreError | None:
        """Log these entries as they are now. Return the error if that fails."""


class Deferred(RequestContext):
    """A request whose response is passed to `on_reply`; a refusal is sent at once."""

    __slots__ = ("_on_reply", "_request")

    def __init__(
        self, request: RequestContext, on_reply: Callable[[RequestContext, RemotingCommand], None]
    ) -> None:
        super().__init__(request.command, request.header, request.connection, request.row, ())
        self._request = request
        self._on_reply = on_reply

    def reply(self, response: RemotingCommand) -> None:
        """Pass the response on."""
        self._on_reply(self._request, response)

    def refuse(self, error: Exception) -> None:
        """Send an error response."""
        self._request.refuse(error)

    def handle(self) -> None:
        """Call the handler. Raises what it raises."""
        response = self.row.handler(self)
        if response is not None:
            self.reply(response)


class _Turn(PendingAck):
    """The responses of one turn."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[RequestContext, RemotingCommand]] = []

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        """Send the responses; after an error refuse the requests: they are to be repeated."""
        held, self.held = self.held, []
        for request, response in held:
            if code == ResponseCode.SUCCESS:
                request.reply(response)
            else:
                request.refuse(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark or "not confirmed"))


class HeldAcks:
    """The acks of the present turn of a master or leader; a chain step of a master."""

    def __init__(
        self, loop: BrokerLoop, log: EntryLog, acked: AckedOffsets, serves: Callable[[], bool]
    ) -> None:
        """Create the object; `serves` returns True while this replica logs what it answers."""
        self._loop = loop
        self._log = log
        self._acked = acked
        self._serves = serves
        self._turn = _Turn()

    def __call__(self, context: RequestContext) -> bool:
        """Handle the request if it is an ack."""
        if not context.row.is_ack or not self._serves():
            return False
        Deferred(context, self._hold).handle()
        return True

    def _hold(self, request: RequestContext, response: RemotingCommand) -> None:
        """Send the response when everything is confirmed that was acked up to the end of this turn."""
        self._turn.held.append((request, response))
        self._loop.server.request_tick()

    def end_turn(self) -> None:
        """Log the changes of this turn, before it is confirmed."""
        turn, positions = self._turn, self._loop.store.positions
        written = positions.written
        error = self._acked.record()
        groups, chunks = self._acked.take_changes()
        if groups or chunks or turn.held:
            names = [(kind, name) for kind in (OFFSET, ORDER) for name in groups]
            error = self._log.log([*names, *((ACKED, name) for name in chunks)]) or error
        if positions.written > written:
            self._loop.flusher.flush_if_idle()
        if not turn.held:
            return
        self._turn = _Turn()
        if error is not None:
            turn(error)
        else:
            self._loop.acks.when_confirmed(positions.written, turn)

    def before(self, following: Callable[[], object]) -> Callable[[], None]:
        """Return a function that logs the changes of this turn before it calls `following`."""

        def end() -> None:
            self.end_turn()
            following()

        return end
