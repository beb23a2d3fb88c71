"""InProcessConnection: sends requests of this process through the same chain as requests from sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.transport.connection import Connection, RequestService
from actors.transport.hub import Hub
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed, without_paths


class InProcessConnection(Connection):
    """A connection without a socket, for callers within the process.

    The service treats it like any other connection and counts its pending requests. It is not in
    `hub.connections`, because it has no peer that could fall behind or be idle.
    """

    def __init__(self, hub: Hub, service: RequestService, name: str, peer_bytes: bytes) -> None:
        """Create a connection for one caller.

        Args:
            hub: Hub of the server.
            service: Handler of the requests.
            name: Name of the caller, logged instead of an address.
            peer_bytes: Address and port that are stored as the bornHost of messages.
        """
        super().__init__(hub, service, name)
        self.peer_bytes = peer_bytes
        self._service = service
        self._is_input_discarded = False
        self._responses: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.on_close(lambda _: self._fail_requests())

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and return its response, successful or not. Raises Closed when the server stops."""
        if self.is_closed or self._is_input_discarded:
            raise Closed(self.peer, "this process is shutting down")
        command.opaque = self._calls.next_opaque()
        response: asyncio.Future[RemotingCommand] = self.hub.loop.create_future()
        self._responses[command.opaque] = response
        try:
            self.hub.request_tick()  # the end of the turn confirms appended messages
            self._service.handle(self, command)
            return await response
        finally:
            del self._responses[command.opaque]

    def discard_input(self) -> None:
        """Accept no further request; send the responses to accepted requests."""
        self._is_input_discarded = True

    def reply_later(self, delay_ms: int, reply: Callable[[], None]) -> None:
        """Call `reply` after a delay. Other requests are handled: many callers share the connection."""
        self.hub.loop.call_later(delay_ms / 1000, reply)

    def send(self, command: RemotingCommand) -> None:
        """Pass a response to its caller.

        Dropped if the caller no longer waits, or if `command` is a request pushed by the server.
        """
        waiting = self._responses.get(command.opaque) if command.is_response else None
        if waiting is not None and not waiting.done():
            # Copied: one response object may serve many requests, and parts are slices of mapped files.
            body = b"".join((command.body, *command.parts))
            remark = command.remark and without_paths(command.remark)
            waiting.set_result(RemotingCommand.response(command.code, remark, dict(command.ext), body))

    def _fail_requests(self) -> None:
        for response in self._responses.values():
            if not response.done():
                response.set_exception(Closed(self.peer, self.close_reason))
