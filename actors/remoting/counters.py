"""RequestCounters: an observer that counts responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from actors.remoting.codes import ResponseCode
from actors.remoting.request import Observation, RequestContext


class RequestCounters:
    """Counts the responses of one server since its start."""

    def __init__(self) -> None:
        self.responses: Counter[tuple[int, int]] = Counter()
        """By request code and status."""
        self.duration_ns: Counter[int] = Counter()
        """By request code, from the decoded request to the response."""
        self.response_bytes: Counter[int] = Counter()
        """By request code, the sizes of the bodies."""

    def __call__(self, context: RequestContext, observation: Observation) -> None:
        """Count one response."""
        code = context.row.code
        self.responses[code, observation.status] += 1
        self.duration_ns[code] += observation.duration_ns
        self.response_bytes[code] += observation.response_bytes

    def failed(self, codes: Container[int]) -> int:
        """Return how many requests of these codes got another status than SUCCESS."""
        return sum(
            count
            for (code, status), count in self.responses.items()
            if code in codes and status != ResponseCode.SUCCESS
        )
