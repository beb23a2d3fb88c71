"""RequestCounters: an observer that counts the responses of a server, and their times."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container
from typing import NamedTuple

from actors.transport.request import Observation, RequestContext
from actors.wire.codes import FLAG_ONEWAY, ResponseCode
from store.common.clock import NS_PER_MS

BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000, 5000)
"""Upper bounds of the times; further ones have no bound."""
_BOUNDS_NS = tuple(bound_ms * NS_PER_MS for bound_ms in BOUNDS_MS)


class ResponseKind(NamedTuple):
    """What responses that are counted together have in common."""

    request_code: int
    response_code: int
    was_held: bool = False
    """The request waited for an event, such as the next message of a queue."""
    is_oneway: bool = False
    """The client wants no response."""


class Responses:
    """The counters of one kind of response."""

    __slots__ = ("body_bytes", "by_time", "duration_ns")

    def __init__(self) -> None:
        self.by_time = [0] * (len(BOUNDS_MS) + 1)
        """Number of responses by the time from decoded request to response."""
        self.duration_ns = 0
        """Sum of these times."""
        self.body_bytes = 0


class RequestCounters:
    """Counters of the responses of one server since its start."""

    def __init__(self) -> None:
        self.kinds: dict[tuple[int, int, bool, bool], Responses] = {}
        """By the fields of ResponseKind."""

    def __call__(self, context: RequestContext, observation: Observation) -> None:
        """Count one response."""
        status, duration_ns, body_bytes = observation
        is_oneway = context.command.flag & FLAG_ONEWAY != 0
        kind = (context.row.code, status, context.was_held, is_oneway)
        try:
            responses = self.kinds[kind]
        except KeyError:
            responses = self.kinds[kind] = Responses()
        responses.by_time[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        responses.duration_ns += duration_ns
        responses.body_bytes += body_bytes

    def add(self, kind: tuple[int, int, bool, bool], count: int, duration_ns: int) -> None:
        """Count `count` responses without a body, each of which took `duration_ns`."""
        responses = self.kinds.setdefault(kind, Responses())
        responses.by_time[bisect_left(_BOUNDS_NS, duration_ns)] += count
        responses.duration_ns += duration_ns * count

    @property
    def responses(self) -> Counter[tuple[int, int]]:
        """Number of responses by (request code, response code)."""
        found: Counter[tuple[int, int]] = Counter()
        for (code, status, *_), responses in self.kinds.items():
            found[code, status] += sum(responses.by_time)
        return found

    @property
    def duration_ns(self) -> Counter[int]:
        """Total time from decoded request to response, by request code."""
        found: Counter[int] = Counter()
        for (code, *_), responses in self.kinds.items():
            found[code] += responses.duration_ns
        return found

    @property
    def response_bytes(self) -> Counter[int]:
        """Total size of the response bodies, by request code."""
        found: Counter[int] = Counter()
        for (code, *_), responses in self.kinds.items():
            found[code] += responses.body_bytes
        return found

    def failed(self, codes: Container[int]) -> int:
        """Return the number of requests with these codes whose response code was not SUCCESS."""
        return sum(
            count
            for (code, status), count in self.responses.items()
            if code in codes and status != ResponseCode.SUCCESS
        )
