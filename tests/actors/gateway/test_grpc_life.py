"""A gRPC connection whose calls, windows and ways to end come in any order. The socket is a fake."""

from __future__ import annotations

import asyncio

from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.gateway.grpc.connection import GrpcConnection
from actors.gateway.grpc.decoder import LongWork
from actors.gateway.grpc.messages import encode_frame
from actors.memory_account import MemoryAccount
from actors.transport.hub import Hub
from actors.transport.limits import RemotingLimits
from tests.actors.gateway.grpc_peers import ECHO, FAIL, LIMITS, MANY, SLOW, Service, message
from tests.conftest import ClockAtRest


class Socket(asyncio.Transport):
    """A socket that keeps what is written until a step drops it."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed, "written after it was closed"
        self.unread += data

    def get_write_buffer_size(self) -> int:
        return len(self.unread)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class LifeMachine(RuleBasedStateMachine):
    """One connection with its real engine, hub and account of memory."""

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.service, self.account, self.socket = Service(), MemoryAccount(1 << 26), Socket()
        self.hub = Hub(ClockAtRest(), RemotingLimits(), account=self.account, is_server=True)
        self.connection = GrpcConnection(self.hub, self.service.methods, LIMITS, self.account, LongWork())
        self.peer = H2Connection(H2Configuration(client_side=True))
        self.peer.initiate_connection()
        self.streams: list[int] = []
        self.is_draining = self.is_lost = False
        self.loop.run_until_complete(self.do(self.connection.connection_made, self.socket))
        self.end_turn()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            if not self.is_lost:
                self.lose()
            assert self.account.used_bytes == 0
            self.loop.close()

    async def do(self, work: object, *given: object) -> None:
        assert callable(work)
        work(*given)

    def receive(self) -> None:
        data = self.peer.data_to_send()
        if not self.socket.is_closed:
            self.connection.get_buffer(-1)[: len(data)] = data
            self.loop.run_until_complete(self.do(self.connection.buffer_updated, len(data)))

    # ---- the peer --------------------

    @rule(path=st.sampled_from([ECHO, SLOW, FAIL, MANY, "/unknown"]), is_complete=st.booleans())
    def call(self, path: str, is_complete: bool) -> None:
        stream_id = self.peer.get_next_available_stream_id()
        self.streams.append(stream_id)
        headers = [(":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x")]
        self.peer.send_headers(
            stream_id, [*headers, ("content-type", "application/grpc"), ("te", "trailers")]
        )
        data = encode_frame(message(300).SerializeToString())
        self.peer.send_data(stream_id, data if is_complete else data[:100], end_stream=is_complete)
        self.receive()

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.sampled_from(self.streams))
        self.streams.remove(stream_id)
        self.peer.reset_stream(stream_id)
        self.receive()

    @rule()
    def read_nothing(self) -> None:
        self.connection.pause_writing()

    @rule()
    def read_all(self) -> None:
        self.socket.unread.clear()
        if not self.is_lost:
            self.loop.run_until_complete(self.do(self.connection.resume_writing))

    # ---- this side --------------------

    @rule()
    def end_turn(self) -> None:
        for _ in range(3):  # a call's task, what it waits for, and the end of the turn
            self.loop.run_until_complete(asyncio.sleep(0))
        if self.is_draining and not self.connection.open_requests:
            assert self.socket.is_closed

    @rule()
    def drain(self) -> None:
        if not self.socket.is_closed and len(self.streams) > 3:
            self.is_draining = True
            self.loop.run_until_complete(self.do(self.connection.discard_input))

    @rule(way=st.sampled_from(["close", "abort", "give_way", "lose"]))
    def end(self, way: str) -> None:
        if not self.is_lost and len(self.streams) > 3:
            if way == "lose":
                self.lose()
                return
            ending = {
                "close": lambda: self.connection.close("shutting down"),
                "abort": lambda: self.connection.abort("stalled"),
                "give_way": self.connection.give_way,
            }[way]
            self.loop.run_until_complete(self.do(ending))

    def lose(self) -> None:
        self.is_lost = True
        self.socket.is_closed = True
        self.loop.run_until_complete(self.do(self.connection.connection_lost, None))
        self.end_turn()

    # ---- what must hold --------------------

    @invariant()
    def a_closed_connection_has_no_call_and_no_place(self) -> None:
        if hasattr(self, "loop") and self.socket.is_closed:
            assert self.connection not in self.hub.connections
            assert self.connection.open_requests == self.connection.unread_bytes == 0

    @invariant()
    def a_lost_connection_holds_no_memory(self) -> None:
        if hasattr(self, "loop") and self.is_lost:
            assert self.account.used_bytes == 0
            assert not self.hub.leaving


LifeMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_connections_release_all_in_any_order_of_events = LifeMachine.TestCase
