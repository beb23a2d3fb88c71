"""RequestRow and RequestContext: a row of the request table, and one request until its response."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from actors.transport.connection import Connection
from actors.transport.slices import Steps
from actors.wire.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Target, Targets, no_targets
from store.common.logs import get_logger
from store.store_errors import MessageInvalid, StoreError

_log = get_logger(__name__)

_SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

# A remark may quote the request, which may be as long as a frame.
REMARK_CHARS_MAX: Final = 4096

_NO_FIELDS: Final[dict[str, str]] = {}

# Returns the response, or None if it is sent later or never. Raises Refused to reject the request.
Take = Callable[[Connection, bytearray, int, int], int]
"""Handles requests at the front of `data[at:end]` (connection, data, at, end); returns the position after the
last one, which is `at` if the first one must be handled by the row's handler.
"""
Handler = Callable[["RequestContext"], RemotingCommand | None]
Observer = Callable[["RequestContext", "Observation"], None]
"""Called with every response, including the unsent responses of one-way requests."""


TopicCheck = Callable[["RequestContext", str], None]
"""Raises Refused unless the sender of a request has permission for a topic. A handler calls it if the topic
is not in the request but in the record that the request names by its position in the CommitLog.
"""
UserOf = Callable[["RequestContext"], str | None]
"""Returns the user that signed a request; None for a super user, and without access control."""

Permits = Callable[["RequestContext", Target], bool]
"""Returns True if the sender of a request has permission for a target. A handler omits from its response what
the sender may not see, for example the topics of a group.
"""


class HeaderType(Protocol):
    """A class of typed headers."""

    def from_ext(self, ext: Mapping[str, str]) -> Any:
        """Return the header decoded from `ext`. Raises Refused if a field is missing or invalid."""


class Cost(StrEnum):
    """Cost class of a request. As in RocketMQ, queue limits and wait limits are set per class."""

    SEND = "send"
    PULL = "pull"
    HEARTBEAT = "heartbeat"
    CLIENT = "client"
    QUERY = "query"
    ADMIN = "admin"


class OnSlave(StrEnum):
    """What a broker does with a request while it is a slave. A former master handles only what is SERVED."""

    SERVED = "served"
    """The slave handles it like a master."""
    READ = "read"
    """The slave handles it if its setting `slave_read_enable` is true; else as BUSY."""
    OFFSETS = "offsets"
    """The slave handles it; a former master does not, because the offsets of the new master count."""
    BUSY = "busy"
    """Refused with SYSTEM_BUSY, as RocketMQ's slaves refuse sends: clients retry with another broker."""
    UNAVAILABLE = "unavailable"
    """Refused with SLAVE_NOT_AVAILABLE, as by RocketMQ's slaves."""
    REFUSED = "refused"
    """Refused with SERVICE_NOT_AVAILABLE; the remark names the master."""


COSTLY: Final = frozenset({Cost.PULL, Cost.QUERY})
"""Cost classes whose requests wait for the end of a turn (`actors.transport.scheduler`)."""


BODY_BYTES_MAX: Final = 4 << 20
"""Largest body of a request, unless its row says otherwise: it is decoded on the event loop."""

REQUEST_BYTES: Final = 1024
"""Memory of a request in work, without its texts and its body."""
DECODED_RATIO: Final = 16
"""Memory of a decoded body, in bytes for each byte."""

HEARTBEAT_BYTES_MAX: Final = 1 << 20
"""Largest body of a heartbeat, and of the subscription of a starting consumer."""
SYNC_BYTES_MAX: Final = 2 << 20
"""Largest body of SYNC_GROUP."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One row of the request table.

    It has the code, handler, header type, targets, cost class and largest body of a request.
    """

    code: int
    handler: Handler
    header_type: HeaderType | None = None
    targets: Targets = no_targets
    cost: Cost = Cost.ADMIN
    body_bytes_max: int = BODY_BYTES_MAX
    take: Take | None = None
    """Handles undecoded frames of this code, several in one call."""
    on_slave: OnSlave = OnSlave.REFUSED
    """What a broker does with the request while it is not the master; other processes ignore it."""
    is_inner: bool = False
    """True if, of all users, only the cluster's inner user may send it, and not on behalf of another user."""
    changes: tuple[str, ...] = ()
    """The replicated tables that it changes, beside topics and groups: the replicas of a Raft group have the
    changes before the response.
    """
    is_ack: bool = False
    """True if its changes are logged with all acks of the turn, and confirmed before the response."""
    needs_services: bool = False
    """True if a new leader refuses it until its services, such as POP, have started."""
    is_for_all: bool = False
    """True if mqadmin sends it to all replicas (`-c`), and ends at the first error: slaves forward it."""

    def refuse_body(self, size_bytes: int) -> None:
        """Raise Refused for a body of `size_bytes`, which exceeds `body_bytes_max`."""
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"the body of {size_bytes:,} bytes exceeds the limit of {self.body_bytes_max:,} for request code "
            f"{int(self.code)}: send several smaller requests",
        )


class Observation(NamedTuple):
    """Response code, duration and size of one response, as passed to observers."""

    status: int
    """The response code."""
    duration_ns: int
    """Time from decoded request to response, including waits."""
    response_bytes: int
    """Size of the response body."""


class RequestContext:
    """One request from decoding to response.

    Holds the command, its typed header and its connection, and sends the response.
    """

    __slots__ = (
        "_has_replied",
        "_is_pending",
        "_observers",
        "_started_ns",
        "command",
        "connection",
        "header",
        "row",
        "sign",
        "was_held",
    )

    def __init__(
        self,
        command: RemotingCommand,
        header: Any,
        connection: Connection,
        row: RequestRow,
        observers: tuple["Observer", ...],
    ) -> None:
        self.command = command
        self.header = header
        self.connection = connection
        self.row = row
        self._observers = observers
        self._started_ns = connection.hub.clock.monotonic_ns() if observers else 0
        self._has_replied = False
        self._is_pending = False
        self.sign: Callable[[RemotingCommand], RemotingCommand] | None = None
        """Returns the signed response; None if the requester does not demand a signature."""
        self.was_held = False
        """True if the request waited for an event, such as the next message of a queue."""

    def reply(self, response: RemotingCommand) -> None:
        """Send the response; also after the handler has returned.

        Nothing is sent for a one-way request or after the first response. The command is encoded before this
        method returns, so one response object may be used for many requests.
        """
        if self._has_replied:
            return
        request = self.command
        if not request.flag & FLAG_ONEWAY:
            if self.sign is not None:
                response = self.sign(response)
            response.opaque = request.opaque
            response.flag |= FLAG_RESPONSE
            response.serialize_type = request.serialize_type
            # Raises ValueError if the response is too long: the error becomes the response.
            self.connection.send(response)
        self._has_replied = True
        if self._is_pending:
            self.connection.add_pending(-1)
        if self._observers:
            self._observe(response)

    def _observe(self, response: RemotingCommand) -> None:
        duration_ns = self.connection.hub.clock.monotonic_ns() - self._started_ns
        response_bytes = len(response.body) + sum(map(len, response.parts))
        observation = Observation(response.code, duration_ns, response_bytes)
        for observe in self._observers:
            observe(self, observation)

    def note_pending(self) -> None:
        """Count the request as pending until its response, because the handler has returned without one."""
        if not self._has_replied and not self.command.flag & FLAG_ONEWAY:
            self._is_pending = True
            self.connection.add_pending(1)

    def release_request(self) -> None:
        """Release header, fields and body of a request that waits; the handler keeps what it needs."""
        self.header = None
        self.command.ext = _NO_FIELDS
        self.command.body = b""

    def refuse(self, error: Exception) -> None:
        """Send an error response: Refused has its own code, other errors become RocketMQ's SYSTEM_ERROR."""
        if isinstance(error, Refused):
            response = RemotingCommand.response(error.code, error.remark[:REMARK_CHARS_MAX])
            if error.delay_ms:
                self.note_pending()
                self.connection.reply_later(error.delay_ms, partial(self.reply, response))
            else:
                self.reply(response)
        elif isinstance(error, MessageInvalid):
            remark = error.remark[:REMARK_CHARS_MAX]
            self.reply(RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, remark))
        else:
            if isinstance(error, StoreError):
                _log.error(
                    "request_failed", code=self.command.code, peer=self.connection.peer, cause=str(error)
                )
            else:
                _log.error(
                    "request_failed", code=self.command.code, peer=self.connection.peer, exc_info=error
                )
            remark = f"{type(error).__name__}: {error}"[:REMARK_CHARS_MAX]
            self.reply(RemotingCommand.response(_SYSTEM_ERROR, remark))

    def spawn(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        """Start a task that runs a coroutine; its result is the response. Too slow for the hot path."""
        size_bytes = self._kept_bytes()
        self._hold(size_bytes)
        self.connection.hub.spawn(self._finish(work, size_bytes))

    def work(self, steps: Steps) -> None:
        """Handle the request in slices: `steps` yields where other requests may run.

        It returns the response, or None. Later sliced requests of the connection wait for it.
        """
        size_bytes = DECODED_RATIO * self._kept_bytes()
        self._hold(size_bytes)
        self.connection.slices.add(steps, partial(self._end_work, size_bytes))

    def _kept_bytes(self) -> int:
        """Return the memory of the request: a body may be a view of a longer buffer."""
        body = self.command.body
        body_bytes = len(body.obj) if type(body) is memoryview else len(body)  # type: ignore[arg-type]
        return REQUEST_BYTES + body_bytes + sum(map(len, self.command.ext.values()))

    def _hold(self, size_bytes: int) -> None:
        share = self.connection.share
        if share is not None:
            share.hold(size_bytes)

    def _end_work(self, size_bytes: int, outcome: RemotingCommand | Exception | None) -> None:
        self._hold(-size_bytes)
        try:
            if isinstance(outcome, Exception):
                self.refuse(outcome)
            elif outcome is not None:
                self.reply(outcome)
        except Exception as error:  # noqa: BLE001 - such as a response that is too long
            self.refuse(error)

    async def _finish(self, work: Coroutine[Any, Any, RemotingCommand | None], size_bytes: int) -> None:
        try:
            response = await work
            if response is not None:
                self.reply(response)
        except Exception as error:  # noqa: BLE001 - a bug in one handler becomes its response
            self.refuse(error)
        finally:
            self._hold(-size_bytes)
