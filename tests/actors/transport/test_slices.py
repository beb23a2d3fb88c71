"""Requests that are handled in slices: others run in between, and each connection keeps its order."""

from __future__ import annotations

from actors.transport.request import RequestContext
from actors.transport.slices import Steps, run_in_slices
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from tests.actors.transport.remoting_peers import raw_peer, request, run, serving
from tests.eventually import eventually_async

LONG, SHORT, SEND, FAIL, TOO_LONG = 1, 2, 3, 4, 5
FRAME_BYTES_MAX = 16 * 1024 * 1024


class Sliced:
    """Handlers in slices: LONG takes until SEND was handled, and each step takes a millisecond."""

    def __init__(self, clock) -> None:
        self.order: list[int] = []
        self._clock = clock

    def serving(self):
        handlers = dict.fromkeys((LONG, SHORT, FAIL, TOO_LONG), self._handle)
        return serving({**handlers, SEND: self._send}, clock=self._clock)

    def steps(self, code: int) -> Steps:
        while code == LONG and SEND not in self.order:
            self._clock.advance(1)
            yield
        yield
        self.order.append(code)
        if code == FAIL:
            raise Refused(ResponseCode.NO_PERMISSION, "not allowed")
        return RemotingCommand.response(body=bytes(FRAME_BYTES_MAX if code == TOO_LONG else 0))

    def _handle(self, context: RequestContext) -> None:
        context.work(self.steps(context.command.code))

    def _send(self, context: RequestContext) -> RemotingCommand:
        self.order.append(SEND)
        return RemotingCommand.response()


def test_other_requests_are_handled_between_slices(clock) -> None:
    sliced = Sliced(clock)

    async def story() -> None:
        async with sliced.serving() as server, raw_peer(server) as one, raw_peer(server) as other:
            one.send(request(LONG, 1), request(SHORT, 2))
            other.send(request(SHORT, 3))
            assert (await other.read()).opaque == 3
            other.send(request(SEND, 4))
            assert (await other.read()).opaque == 4
            assert [(await one.read()).opaque for _ in range(2)] == [1, 2]

    run(story())
    assert sliced.order == [SHORT, SEND, LONG, SHORT]


def test_error_in_a_slice_is_the_response_of_its_request(clock) -> None:
    sliced = Sliced(clock)

    async def story() -> None:
        async with sliced.serving() as server, raw_peer(server) as one, raw_peer(server) as other:
            one.send(request(LONG, 1), request(FAIL, 2), request(TOO_LONG, 3), request(SHORT, 4))
            other.send(request(SEND, 1))
            assert (await one.read()).code == ResponseCode.SUCCESS
            refused = await one.read()
            assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "not allowed")
            too_long = await one.read()
            assert (too_long.opaque, too_long.code) == (3, ResponseCode.SYSTEM_ERROR)
            assert (await one.read()).opaque == 4

    run(story())


def test_work_continues_after_its_connection_has_closed(clock) -> None:
    sliced = Sliced(clock)

    async def story() -> None:
        async with sliced.serving() as server, raw_peer(server) as other:
            async with raw_peer(server) as one:
                one.send(request(LONG, 1))
                await eventually_async(lambda: clock.monotonic_ns() > 0)
            await eventually_async(lambda: len(server.connections) == 1)
            run_in_slices(server.hub, sliced.steps(SHORT))
            other.send(request(SEND, 1))
            await eventually_async(lambda: LONG in sliced.order)

    run(story())
    assert sliced.order == [SHORT, SEND, LONG]
