"""Times in requests of consumers: how long a receive waits, and how long messages are invisible."""

from __future__ import annotations

from typing import Final

from actors.gateway.grpc.calls import Call
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.proto.service_pb2 import ReceiveMessageRequest
from actors.gateway.receipts import INVISIBLE_MS
from actors.gateway.statuses import RpcFailed

POLLING_MS_MIN: Final = 5_000
"""Of a call that names no polling time."""
POLLING_MS_MAX: Final = 20_000
POLLING_RESERVE_MS: Final = 500
"""Time of a call's deadline that is left for the response."""
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000


def invisible_ms(request: ReceiveMessageRequest) -> int:
    """Return for how long received messages are invisible. Raises RpcFailed."""
    if request.auto_renew:
        return INVISIBLE_MS
    invisible_ms = request.invisible_duration.ToMilliseconds()
    check_invisible_ms(invisible_ms, INVISIBLE_MS_MIN)
    return invisible_ms


def check_invisible_ms(invisible_ms: int, least_ms: int) -> None:
    """Raise RpcFailed if an invisible time is out of range."""
    if invisible_ms < least_ms:
        raise RpcFailed(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too small. min is {least_ms}: it is {invisible_ms} ms",
        )
    if invisible_ms > INVISIBLE_MS_MAX:
        raise RpcFailed(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}: it is {invisible_ms} ms",
        )


def polling_ms(call: Call, request: ReceiveMessageRequest, request_timeout_ms: int) -> int:
    """Return how long the broker may hold the pop, so that the response arrives before the deadline.

    Old SDKs name no time: their deadline is the time that they want, plus their request timeout. Raises
    RpcFailed.
    """
    given = request.long_polling_timeout.ToMilliseconds()
    left_ms = POLLING_MS_MAX if call.remaining_s is None else int(call.remaining_s * 1000)
    wanted = given
    if not request.HasField("long_polling_timeout"):
        wanted = max(left_ms - request_timeout_ms // 2, POLLING_MS_MIN)
    if given < 0 or left_ms <= POLLING_RESERVE_MS:
        raise RpcFailed(
            Code.ILLEGAL_POLLING_TIME,
            "The deadline time remaining is not enough for polling, please check network condition: the "
            f"polling time is {given} ms, the remaining one {left_ms} ms",
        )
    return min(wanted, POLLING_MS_MAX, left_ms - POLLING_RESERVE_MS)
