"""WaitRegistry: holds requests, such as pulls, until messages arrive or their deadline passes.

                  ┌── arrived: the arrival satisfies the request ──► released; the caller resumes it
                  ├── expired ──────────────────────────────────────► released
    hold ──► held ┼── of_topic, of_connection, first ───────────────► released
                  ├── the connection closes ────────────────────────► dropped
                  └── close ────────────────────────────────────────► refused

A held request is one small object, without a task or thread. An arrival checks only the requests that wait
on its queue or its topic, and a heap of deadlines gives the next one that expires.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

from actors.bounds import AtLimit, Bound, Use
from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock

Key = str | tuple[str, Any]
"""The key that a request waits on: a topic with all of its queues, (topic, queue id), or (topic, group)."""
ArrivalT = TypeVar("ArrivalT", contravariant=True)
KeyT = TypeVar("KeyT", bound=Hashable)
RequestT = TypeVar("RequestT", bound="HeldRequest[Any]")

DEADLINE_SPAN_NS = 1 << 24
"""Deadlines are rounded up to a multiple of this (17 ms), because it is cheaper to respond to thousands of
clients in one turn.
"""
_LONG_WAIT_MS = 5_000
_LATE_MS = 5_000
"""RocketMQ checks held pulls every 5 s, so it holds them up to 5 s longer than requested. Its clients time
out after 30 s, long enough for that.
"""


def suspend_ms(requested_ms: int, max_hold_ms: int) -> int:
    """Return how long to hold a pull of a RocketMQ client, in milliseconds.

    Like RocketMQ, hold it longer than requested: clients then send fewer pulls per second.
    """
    return min(requested_ms + _LATE_MS if requested_ms >= _LONG_WAIT_MS else requested_ms, max_hold_ms)


def shutting_down() -> Refused:
    """Return the refusal of requests that wait while the broker stops.

    It is an error, because a client repeats its request immediately after an empty response.
    """
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is shutting down")


HELD: Final = Bound("held_pulls", 100_000, AtLimit.REFUSE, "Pulls and pops that wait for messages.")


class HeldRequest(ABC, Generic[ArrivalT]):
    """A request that may be held until something arrives at its key."""

    __slots__ = ("context", "key")

    def __init__(self, context: RequestContext, key: Key) -> None:
        self.context = context
        self.key = key

    @abstractmethod
    def is_satisfied(self, arrival: ArrivalT) -> bool:
        """Return True if the request should be resumed because of this arrival at its key."""

    @abstractmethod
    def resume(self) -> None:
        """Respond to the request; called after an arrival, a deadline or `EndOfTurn.wake`."""


class WaitRegistry(Generic[ArrivalT]):
    """All held requests of one broker, at most `requests_max`.

    Dictionaries serve as ordered sets: a key or connection may have thousands of requests, too many to
    search.
    """

    def __init__(self, clock: Clock, requests_max: int) -> None:
        self._clock = clock
        self._requests_max = requests_max
        self._deadlines_ns: dict[HeldRequest[ArrivalT], int] = {}
        self._by_key: dict[Key, dict[HeldRequest[ArrivalT], None]] = {}
        self._by_connection: dict[Connection, dict[HeldRequest[ArrivalT], None]] = {}
        self._by_deadline: dict[int, dict[HeldRequest[ArrivalT], None]] = {}
        # The keys of `_by_deadline`, including those whose requests were all released.
        self._heap: list[int] = []
        self._watched: set[Connection] = set()  # connections whose requests are dropped when they close
        self._is_closed = False
        self._on_earlier: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._deadlines_ns)

    @property
    def keys(self) -> Collection[Key]:
        """The keys that requests wait on, as a live view."""
        return self._by_key.keys()

    @property
    def next_deadline_ns(self) -> int | None:
        """The monotonic time at which `expired` next returns a request; None if no request is held."""
        heap = self._heap
        while heap and not self._by_deadline[heap[0]]:
            del self._by_deadline[heapq.heappop(heap)]
        return heap[0] if heap else None

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (HELD.use(self.__len__, lambda: self._requests_max),)

    def on_earlier_deadline(self, callback: Callable[[], None]) -> None:
        """Set the function to call when `next_deadline_ns` has become earlier."""
        self._on_earlier = callback

    def hold(self, request: HeldRequest[ArrivalT], wait_ms: int) -> None:
        """Hold a request for `wait_ms`. Raises Refused if the registry is full or closed."""
        if self._is_closed:
            raise shutting_down()
        if len(self) >= self._requests_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self)} pulls are held, max_held_pulls is {self._requests_max}: raise it on the broker",
            )
        connection = request.context.connection
        ends_ns = self._clock.monotonic_ns() + wait_ms * NS_PER_MS
        deadline_ns = -(-ends_ns // DEADLINE_SPAN_NS) * DEADLINE_SPAN_NS
        self._deadlines_ns[request] = deadline_ns
        self._by_key.setdefault(request.key, {})[request] = None
        self._by_connection.setdefault(connection, {})[request] = None
        if deadline_ns not in self._by_deadline:
            self._by_deadline[deadline_ns] = {}
            heapq.heappush(self._heap, deadline_ns)
        same_deadline = self._by_deadline[deadline_ns]
        same_deadline[request] = None
        # Further requests of the same deadline need no earlier timer than the first one.
        if len(same_deadline) == 1 and self.next_deadline_ns == deadline_ns:
            self._on_earlier()
        if connection not in self._watched:
            self._watched.add(connection)
            connection.on_close(self._drop_connection)

    def arrived(self, key: tuple[str, Any], arrival: ArrivalT) -> list[HeldRequest[ArrivalT]]:
        """Release and return the requests that an arrival at their key, or in their topic, satisfies."""
        by_key = self._by_key
        waiting = (*by_key.get(key, ()), *by_key.get(key[0], ()))
        return self._release([each for each in waiting if each.is_satisfied(arrival)])

    def expired(self) -> list[HeldRequest[ArrivalT]]:
        """Release and return the requests whose deadline has passed."""
        now_ns = self._clock.monotonic_ns()
        expired: list[HeldRequest[ArrivalT]] = []
        while (deadline_ns := self.next_deadline_ns) is not None and deadline_ns <= now_ns:
            expired += self._release(list(self._by_deadline[deadline_ns]))
        return expired

    def of_topic(self, topic: str) -> list[HeldRequest[ArrivalT]]:
        """Release and return all requests of a topic; used when the topic is deleted."""
        keys = [key for key in self._by_key if topic == (key if isinstance(key, str) else key[0])]
        return self._release([each for key in keys for each in self._by_key[key]])

    def of_connection(
        self, connection: Connection, kind: type[RequestT], is_wanted: Callable[[RequestT], bool]
    ) -> list[RequestT]:
        """Release and return the requests of one kind that a connection has, if `is_wanted` returns True."""
        requests = self._by_connection.get(connection, ())
        return self._release([each for each in requests if isinstance(each, kind) and is_wanted(each)])

    def first(self, key: Key, kind: type[RequestT], is_wanted: Callable[[RequestT], bool]) -> RequestT | None:
        """Release and return the oldest wanted request of one kind that waits on `key`, or None."""
        for each in self._by_key.get(key, ()):
            if isinstance(each, kind) and is_wanted(each):
                return self._release([each])[0]
        return None

    def count(self, key: Key, kind: type[RequestT], is_wanted: Callable[[RequestT], bool]) -> int:
        """Return the number of wanted requests of one kind that wait on `key`."""
        return sum(isinstance(each, kind) and is_wanted(each) for each in self._by_key.get(key, ()))

    def close(self) -> None:
        """Refuse all held and all further requests."""
        self._is_closed = True
        for request in self._release(list(self._deadlines_ns)):
            request.context.refuse(shutting_down())

    def _drop_connection(self, connection: Connection) -> None:
        self._watched.discard(connection)
        self._release(list(self._by_connection.get(connection, ())))

    def _release(self, requests: list[RequestT]) -> list[RequestT]:
        for request in requests:
            del self._by_deadline[self._deadlines_ns.pop(request)][request]
            _remove(self._by_key, request.key, request)
            _remove(self._by_connection, request.context.connection, request)
        return requests


def _remove(
    requests_by: dict[KeyT, dict[HeldRequest[ArrivalT], None]], key: KeyT, request: HeldRequest[ArrivalT]
) -> None:
    requests = requests_by[key]
    del requests[request]
    if not requests:
        del requests_by[key]
