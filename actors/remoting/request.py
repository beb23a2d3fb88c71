"""RequestRow and RequestContext: one row of the request table, and one request until its response."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from actors.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.remoting_errors import Refused
from actors.remoting.targets import Targets, no_targets
from store.logs import get_logger
from store.store_errors import MessageInvalid, StoreError

_log = get_logger(__name__)

_SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

# A remark may name what was sent, which may be as long as a frame.
_REMARK_CHARS_MAX: Final = 4096

_NO_FIELDS: Final[dict[str, str]] = {}

# Returns the response, or None if it is sent later or never; raises Refused.
Handler = Callable[["RequestContext"], RemotingCommand | None]
Observer = Callable[["RequestContext", "Observation"], None]
"""Is called with every response, also with those that a one-way request does not get."""


class HeaderType(Protocol):
    """A class of typed headers; `from_ext` raises Refused if a field is missing or not a number."""

    def from_ext(self, ext: Mapping[str, str]) -> Any:
        """Return the header of these fields."""
        ...


class Cost(StrEnum):
    """Class of cost of a request: RocketMQ limits queues and waiting times by class."""

    SEND = "send"
    PULL = "pull"
    HEARTBEAT = "heartbeat"
    CLIENT = "client"
    QUERY = "query"
    ADMIN = "admin"


COSTLY: Final = frozenset({Cost.PULL, Cost.QUERY})
"""Classes of requests that wait for the end of a turn (`actors.remoting.turn`)."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One row of the request table: what a capability declares of a request that it handles."""

    code: int
    handler: Handler
    header_type: HeaderType | None = None
    targets: Targets = no_targets
    cost: Cost = Cost.ADMIN


class Observation(NamedTuple):
    """What an observer learns of one response."""

    status: int
    """The response code."""
    duration_ns: int
    """From the decoded request to the response, waits included."""
    response_bytes: int
    """The size of the response's body."""


class RequestContext:
    """One request on its way: the command, its typed header, where it came from, and how to answer it."""

    __slots__ = (
        "_is_answered",
        "_is_pending",
        "_observers",
        "_started_ns",
        "command",
        "connection",
        "header",
        "row",
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
        self._is_answered = False
        self._is_pending = False

    def reply(self, response: RemotingCommand) -> None:
        """Send the response, now or later; dropped for a one-way request and after the first one.

        The command is encoded before this returns, so that one response object may serve many requests.
        """
        if self._is_answered:
            return
        request = self.command
        if not request.flag & FLAG_ONEWAY:
            response.opaque = request.opaque
            response.flag |= FLAG_RESPONSE
            response.serialize_type = request.serialize_type
            # Raises if the response is too long: the error becomes the response.
            self.connection.send(response)
        self._is_answered = True
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
        """Count the request as pending until its response: the handler has returned without one."""
        if not self._is_answered and not self.command.flag & FLAG_ONEWAY:
            self._is_pending = True
            self.connection.add_pending(1)

    def release_request(self) -> None:
        """Release header, fields and body while the request is held; the handler keeps what it needs."""
        self.header = None
        self.command.ext = _NO_FIELDS
        self.command.body = b""

    def refuse(self, error: Exception) -> None:
        """Respond with an error: a refusal has its own code, anything else is RocketMQ's SYSTEM_ERROR."""
        if isinstance(error, Refused):
            self.reply(RemotingCommand.response(error.code, error.remark[:_REMARK_CHARS_MAX]))
        elif isinstance(error, MessageInvalid):
            remark = error.remark[:_REMARK_CHARS_MAX]
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
            remark = f"{type(error).__name__}: {error}"[:_REMARK_CHARS_MAX]
            self.reply(RemotingCommand.response(_SYSTEM_ERROR, remark))

    def spawn(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        """Handle this request in a task that returns the response. Not for the hot path."""
        self.connection.hub.spawn(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        try:
            response = await work
            if response is not None:
                self.reply(response)
        except Exception as error:  # noqa: BLE001 - a bug in one handler becomes its response
            self.refuse(error)
