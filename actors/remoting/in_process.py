"""InProcessConnection: requests of this process itself, through the chain that serves the sockets."""

from __future__ import annotations

import asyncio

from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection, Service
from actors.remoting.hub import Hub
from actors.remoting.remoting_errors import Closed


class InProcessConnection(Connection):
    """A connection without a socket: the service sees it as any other, and counts its pending requests.

    Not in `hub.connections`: it has no peer that could fall behind or be idle.
    """

    def __init__(self, hub: Hub, service: Service, name: str, peer_bytes: bytes) -> None:
        """Connect a caller within the process.

        Args:
            hub: of the server.
            service: handles the requests.
            name: stands in logs instead of an address.
            peer_bytes: address and port stored with messages as their bornHost.
        """
        super().__init__(hub, service, name)
        self.peer_bytes = peer_bytes
        self._service = service
        self._is_hushed = False
        self._responses: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.on_close(lambda _: self._fail_requests())

    async def request(self, command: RemotingCommand) -> RemotingCommand:
        """Return the response to a request, whatever its code. Raises Closed when the server stops."""
        if self.is_closed or self._is_hushed:
            raise Closed(self.peer, "this process is shutting down")
        command.opaque = self._calls.next_opaque()
        response: asyncio.Future[RemotingCommand] = self.hub.loop.create_future()
        self._responses[command.opaque] = response
        try:
            self.hub.request_tick()  # as after reading a socket: the turn's end confirms what is appended
            self._service.handle(self, command)
            return await response
        finally:
            del self._responses[command.opaque]

    def discard_input(self) -> None:
        """Take no further request; those that have been taken are still answered."""
        self._is_hushed = True

    def send(self, command: RemotingCommand) -> None:
        """Pass a response to its caller; dropped when the caller waits no longer, and so is a push."""
        waiting = self._responses.get(command.opaque) if command.is_response else None
        if waiting is not None and not waiting.done():
            # Copied: one response object may serve many requests, and parts are slices of mapped files.
            body = b"".join((command.body, *command.parts))
            waiting.set_result(
                RemotingCommand.response(command.code, command.remark, dict(command.ext), body)
            )

    def _fail_requests(self) -> None:
        for response in self._responses.values():
            if not response.done():
                response.set_exception(Closed(self.peer, self.close_reason))
