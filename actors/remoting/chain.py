"""What every request runs through: decode → authenticate → authorize → admit → handle → observe."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.errors import Refused
from actors.remoting.table import Action, Cost, RequestEntry, RequestTable, Resource
from store.errors import MessageIllegal, StoreError
from store.logs import get_logger

if TYPE_CHECKING:
    from actors.remoting.connection import Connection

_log = get_logger(__name__)

_UNKNOWN_CODE: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
_NAMES: Final = {int(code): code.name for code in RequestCode}
_SYSTEM_ERROR: Final = int(ResponseCode.SYSTEM_ERROR)

# A remark may name what was sent, which may be as long as a frame.
_REMARK_CHARS_MAX: Final = 4096

_NO_FIELDS: Final[dict[str, str]] = {}

# A step before the handler: lets the request pass, or raises Refused.
Step = Callable[["RequestContext"], None]
# Sees every answer as it goes out.
Observer = Callable[["RequestContext", RemotingCommand], None]


class RequestContext:
    """One request on its way: the command, its typed header, where it came from, and how to answer it."""

    __slots__ = ("_is_answered", "_is_pending", "chain", "command", "connection", "entry", "header")

    def __init__(
        self,
        command: RemotingCommand,
        header: Any,
        connection: "Connection",
        entry: RequestEntry,
        chain: "Chain",
    ) -> None:
        self.command = command
        self.header = header
        self.connection = connection
        self.entry = entry
        self.chain = chain
        self._is_answered = False
        self._is_pending = False

    def reply(self, response: RemotingCommand) -> None:
        """Answer, now or later; a one-way request's answer is dropped, and so is a second one.

        The command is encoded before this returns, so that one answer object may serve many requests.
        """
        if self._is_answered:
            return
        request = self.command
        if not request.flag & FLAG_ONEWAY:
            response.opaque = request.opaque
            response.flag |= FLAG_RESPONSE
            response.serialize_type = request.serialize_type
            # Raises where the answer is too long: then the error is the answer.
            self.connection.send(response)
        self._is_answered = True
        if self._is_pending:
            self.connection.pending -= 1
        self.entry.answers += 1
        for observe in self.chain.observers:
            observe(self, response)

    def note_pending(self) -> None:
        """The handler has returned and may answer later: until then the request counts as pending."""
        if not self._is_answered and not self.command.flag & FLAG_ONEWAY:
            self._is_pending = True
            self.connection.pending += 1

    def let_go_of_request(self) -> None:
        """Forget what was asked: the handler has what it needs of it, and the answer will take its time."""
        self.header = None
        self.command.ext = _NO_FIELDS
        self.command.body = b""

    def refuse(self, error: Exception) -> None:
        """Answer with an error: a refusal by its own code, anything else as RocketMQ's SYSTEM_ERROR, with
        the reason.
        """
        if isinstance(error, TypeError | AttributeError):
            error = self._blame_header() or error
        if isinstance(error, Refused):
            self.entry.refusals += 1
            self.reply(RemotingCommand.response(error.code, error.remark[:_REMARK_CHARS_MAX]))
        elif isinstance(error, MessageIllegal):
            self.entry.refusals += 1
            remark = error.remark[:_REMARK_CHARS_MAX]
            self.reply(RemotingCommand.response(ResponseCode.MESSAGE_ILLEGAL, remark))
        else:
            self.entry.failures += 1
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

    def _blame_header(self) -> Refused | None:
        """Decoding trusts those who say they are Java to write strings; here it shows who did not."""
        ext: object = self.command.ext
        if not isinstance(ext, dict):
            return Refused(_SYSTEM_ERROR, "the header's extFields is no JSON object")
        for key, value in ext.items():
            if not isinstance(value, str):
                return Refused(_SYSTEM_ERROR, f"the header's field `{key}` is no string: {str(value)[:100]}")
        return None

    def spawn(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        """Finish this request in a task of its own; what it returns is the answer. Not for the hot path."""
        self.connection.hub.spawn(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        try:
            response = await work
            if response is not None:
                self.reply(response)
        except Exception as error:  # noqa: BLE001 - a bug in one handler is answered, and ends nothing else
            self.refuse(error)


class Chain:
    """The way through a table. `steps` are authenticate, authorize and admit, in this order, where there
    are any.
    """

    def __init__(
        self, table: RequestTable, steps: Sequence[Step] = (), observers: Sequence[Observer] = ()
    ) -> None:
        self.table = table
        self.steps = tuple(steps)
        self.observers = tuple(observers)
        self.unknown = RequestEntry(0, _answer_unknown, None, Resource.NONE, Action.NONE, Cost.ADMIN)
        self._entries = table.entries

    def handle(self, connection: "Connection", command: RemotingCommand) -> None:
        """Take one request through; whatever goes wrong in it becomes its answer."""
        entry = self._entries.get(command.code, self.unknown)
        entry.requests += 1
        context = RequestContext(command, None, connection, entry, self)
        try:
            if entry.header_type is not None:
                context.header = entry.header_type.from_ext(command.ext)
            for step in self.steps:
                step(context)
            response = entry.handler(context)
            if response is not None:
                context.reply(response)
            else:
                context.note_pending()
        except Exception as error:  # noqa: BLE001 - a bug in one handler is answered, and ends nothing else
            context.refuse(error)


def _answer_unknown(context: RequestContext) -> RemotingCommand:
    code = context.command.code
    name = f" ({_NAMES[code]})" if code in _NAMES else ""
    remark = f"request code {code}{name} is not supported by this process"
    return RemotingCommand.response(_UNKNOWN_CODE, remark)
