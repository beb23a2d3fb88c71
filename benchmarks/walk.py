"""Count how far one message walks through the code: files, calls and hand-overs of each trip.

    uv run python -m benchmarks.walk [--repeats 15] [--path DIR]

Client, nameserver, broker, gateway and Raft group run in this process, and a profile function records each
call of a function of the product:

    files      files of which code runs until the caller has its response
    re-entered of these, the files that are entered at least twice, from another file
    calls      calls of functions in them
    hand-overs callbacks, timers and jobs that were given to an event loop or a pool of threads

Each trip is walked several times. A walk with a background tick in it has more calls, so the shortest one is
printed, and `--path` writes its files and functions in order.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NamedTuple

import grpc

from actors.gateway.proto import definition_pb2 as shape
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.service import SERVICE
from actors.wire.codes import RequestCode
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader
from benchmarks.raw_peer import RawPeer
from cluster.client import Admin, Message, PopConsumer, Producer
from cluster.standalone import StandaloneCluster, StandaloneSettings
from store.common.clock import SystemClock
from store.store_settings import StoreSettings
from tests.actors.broker.replication.raft.groups import Group

TOPIC, BODY = "T", b"x" * 100
PULL = PullMessageHeader("walk", TOPIC, 0, 0, 1, sys_flag=4, subscription="*")
COLUMNS = ("files", "re-entered", "calls", "hand-overs")
WARM_UP_TRIPS = 10  # they fill caches and open connections
QUIET_S = 0.04  # pause before a walk: dispatch, which waits up to 10 ms, belongs to the one before
HAND_OVERS = frozenset({"call_soon", "call_soon_threadsafe", "call_later", "submit"})
_PROJECT = str(Path(__file__).parents[1]) + os.sep
_PRODUCT = tuple(_PROJECT + package + os.sep for package in ("store", "actors", "cluster", "jobs"))
_RUNTIME = (str(Path(asyncio.__file__).parent), str(Path(concurrent.futures.__file__).parent))


class Call(NamedTuple):
    """One call of a function. `file` is empty for a hand-over."""

    thread: int
    file: str
    name: str


class Walk(NamedTuple):
    """The calls of one trip, until the caller has the response."""

    calls: list[Call]

    def visits(self) -> list[tuple[str, list[str]]]:
        """Return the files in the order in which they are entered, with the functions called in each."""
        steps = groupby((each for each in self.calls if each.file), key=lambda each: each[:2])
        return [(file, [each.name for each in calls]) for (_, file), calls in steps]

    def figures(self) -> tuple[int, ...]:
        """Return a number for each of COLUMNS."""
        entered = Counter(file for file, _ in self.visits())
        calls = sum(bool(each.file) for each in self.calls)
        return len(entered), sum(times > 1 for times in entered.values()), calls, len(self.calls) - calls


class Tracer:
    """Records the calls of this thread, and of all threads that start after it was created."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._is_on = False
        threading.setprofile(self._record)
        sys.setprofile(self._record)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._is_on:
            return
        code = frame.f_code
        if code.co_filename.startswith(_PRODUCT):
            name, file = code.co_qualname, code.co_filename.removeprefix(_PROJECT)
        elif code.co_name in HAND_OVERS and code.co_filename.startswith(_RUNTIME):
            name, file = code.co_name, ""
        else:
            return
        self._calls.append(Call(threading.get_ident(), file, name))

    def walk(self, trip: Callable[[], object]) -> Walk:
        """Record one trip."""
        time.sleep(QUIET_S)
        self._calls, self._is_on = [], True
        trip()
        self._is_on = False
        return Walk(self._calls)

    def shortest(self, trip: Callable[[], object], repeats: int) -> Walk:
        """Return the shortest of `repeats` walks."""
        for _ in range(WARM_UP_TRIPS):
            trip()
        return min((self.walk(trip) for _ in range(repeats)), key=lambda walk: len(walk.calls))


@contextmanager
def service_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Yield a function that runs coroutines in a thread; uvloop would hide its hand-overs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="services")
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def trips_of_a_broker(stack: ExitStack, root: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Start a cluster with a gateway, and yield the trips to it."""
    run = stack.enter_context(service_loop())
    store = StoreSettings.model_validate({"flush": "sync", "commit_log_file_bytes": 64 << 20})
    cluster = StandaloneCluster(StandaloneSettings(root, store=store, gateway_port=0), SystemClock())
    run(cluster.start())
    stack.callback(lambda: run(cluster.stop()))
    nameserver = cluster.nameserver_address
    with Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=1)
    producer = stack.enter_context(Producer(nameserver, group="walk"))
    yield "send", lambda: producer.send(TOPIC, BODY, tags="a", keys="k")
    yield "delayed send", lambda: producer.send(Message(TOPIC, BODY, delay_level=18))
    peer = stack.enter_context(RawPeer(cluster.brokers[0].address))
    yield "pull", partial(peer.call_checked, RequestCode.PULL_MESSAGE, PULL.to_ext())
    consumer = stack.enter_context(PopConsumer(nameserver, group="walk"))
    yield "pop", lambda: consumer.receive(TOPIC, max_messages=1)
    yield "gateway send", partial(send, stack.enter_context(grpc.insecure_channel(cluster.gateway_address)))


def trip_to_a_group(stack: ExitStack, root: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Start a Raft group of three brokers, and yield the trip to its leader."""
    run = stack.enter_context(service_loop())
    group = Group(root)
    run(group.__aenter__())
    stack.callback(lambda: run(group.__aexit__()))
    peer = stack.enter_context(RawPeer(group.peers[run(group.send(BODY))].broker.address))
    ext = SendMessageHeader("walk", TOPIC, 0).to_ext()
    yield "raft append", lambda: peer.call_checked(RequestCode.SEND_MESSAGE_V2, ext, BODY)


def send(channel: grpc.Channel) -> None:
    """Send one message to a gateway."""
    encode, decode = rpc.SendMessageRequest.SerializeToString, rpc.SendMessageResponse.FromString
    system = shape.SystemProperties(message_id=f"01{os.urandom(16).hex().upper()}")
    message = shape.Message(topic=shape.Resource(name=TOPIC), body=BODY, system_properties=system)
    request = rpc.SendMessageRequest(messages=[message])
    call, client = (
        channel.unary_unary(SERVICE + "SendMessage", encode, decode),
        (("x-mq-client-id", "walk@1"),),
    )
    status = call(request, metadata=client, timeout=10).status
    assert status.code == shape.OK, status.message


def main() -> None:
    """Walk all trips and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.walk", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="walks of each trip; the shortest counts")
    parser.add_argument("--path", type=Path, help="directory for the files and functions of each trip")
    given = parser.parse_args()
    tracer = Tracer()
    print(" " * 14 + "".join(f"{column:>12}" for column in COLUMNS))
    for trips in (trips_of_a_broker, trip_to_a_group):
        with TemporaryDirectory() as root, ExitStack() as stack:
            for name, trip in trips(stack, Path(root)):
                walk = tracer.shortest(trip, given.repeats)
                print(f"{name:<14}" + "".join(f"{figure:>12,}" for figure in walk.figures()))
                if given.path is not None:
                    lines = (f"{file}  {', '.join(names)}\n" for file, names in walk.visits())
                    (given.path / f"{name.replace(' ', '-')}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
