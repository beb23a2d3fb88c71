"""The request chain: decode → authenticate → authorize → admit → handle → observe."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from actors.transport.connection import Connection
from actors.transport.request import Observer, OnSlave, RequestContext, RequestRow
from actors.transport.table import RequestTable
from actors.wire.codes import REQUEST_NAMES, ResponseCode
from actors.wire.command import RemotingCommand

_UNKNOWN_CODE: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

Step = Callable[[RequestContext], bool | None]
"""A step before the handler. It raises Refused to reject the request, and returns True if it responds itself,
later: then neither the following steps nor the handler are called.
"""


class Chain:
    """Runs each request of a table through the steps, its handler and the observers.

    `steps` are those of authenticate, authorize and admit that are configured, in this order.
    """

    def __init__(
        self, table: RequestTable, steps: Sequence[Step] = (), observers: Sequence[Observer] = ()
    ) -> None:
        self.table = table
        self.steps = tuple(steps)
        self.observers = tuple(observers)
        self.unknown = RequestRow(0, _reject_unknown_code, on_slave=OnSlave.SERVED)
        self.costly_codes = table.costly_codes
        self.taken_codes = table.taken_codes
        self._rows = table.rows

    def extend(self, steps: Iterable[Step], observers: Iterable[Observer]) -> None:
        """Add steps and observers after the present ones; to be called before the first request."""
        self.steps += tuple(steps)
        self.observers += tuple(observers)

    def take(self, connection: Connection, data: bytearray, at: int, end: int) -> int:
        """Handle frames at the front of `data[at:end]`; return the position after the last one, or `at`."""
        take = self.table.take
        return at if take is None else take(connection, data, at, end)

    def handle(self, connection: Connection, command: RemotingCommand) -> None:
        """Handle one request; any exception becomes its error response."""
        row = self._rows.get(command.code, self.unknown)
        context = RequestContext(command, None, connection, row, self.observers)
        try:
            if len(command.body) > row.body_bytes_max:
                row.refuse_body(len(command.body))
            if row.header_type is not None:
                context.header = row.header_type.from_ext(command.ext)
            for step in self.steps:
                if step(context):
                    context.note_pending()
                    return
            response = row.handler(context)
            if response is not None:
                context.reply(response)
            else:
                context.note_pending()
        except Exception as error:  # noqa: BLE001 - a bug in one handler fails this request only
            context.refuse(error)


def _reject_unknown_code(context: RequestContext) -> RemotingCommand:
    code = context.command.code
    name = f" ({REQUEST_NAMES[code]})" if code in REQUEST_NAMES else ""
    remark = f"request code {code}{name} is not supported by this process"
    return RemotingCommand.response(_UNKNOWN_CODE, remark)
