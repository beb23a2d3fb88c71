"""RequestCounters: an observer that counts the responses of a server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from actors.remoting.codes import ResponseCode
from actors.remoting.request import Observation, RequestContext


class RequestCounters:
    """Counters of the responses of one server since its start."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[int, int]] = Counter()
        """Number of responses by (request code, response code)."""
        self.duration_ns: Counter[int] = Counter()
        """Total time from decoded request to response, by request code."""
        self.response_bytes: Counter[int] = Counter()
        """Total size of the response bodies, by request code."""

    def __call__(self, context: RequestContext, observation: Observation) -> None:
        """Count one response."""
        code = context.row.code
        self.responses[code, observation.status] += 1
        self.duration_ns[code] += observation.duration_ns
        self.response_bytes[code] += observation.response_bytes

    def add(self, code: int, status: int, count: int, duration_ns: int) -> None:
        """Count `count` responses without a body, which took `duration_ns` together."""
        self.responses[code, status] += count
        self.duration_ns[code] += duration_ns

    def failed(self, codes: Container[int]) -> int:
        """Return the number of requests with these codes whose response code was not SUCCESS."""
        return sum(
            count
            for (code, status), count in self.responses.items()
            if code in codes and status != ResponseCode.SUCCESS
        )
