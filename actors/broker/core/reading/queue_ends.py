"""QueueEnds: cached responses to pulls at the end of a queue, which is where most held pulls are.

Such a response needs no read of the store. Queues that have the same minimum and maximum offset share one
response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand, SharedResponse
from store.message_store import MessageStore
from store.reading.message_reader import GetMessageResult

RESPONSES: Final = Bound(
    "queue_end_responses", 1024, AtLimit.EVICT, "Kept responses to pulls at the ends of queues."
)
SUGGESTED_BROKER = "suggestWhichBrokerId"
NEXT_BEGIN_OFFSET = "nextBeginOffset"


def not_found_response(found: GetMessageResult) -> SharedResponse:
    """Return the response PULL_NOT_FOUND for a read that found no message."""
    return SharedResponse.response(ResponseCode.PULL_NOT_FOUND, found.status.name, offset_fields(found))


def offset_fields(found: GetMessageResult) -> dict[str, str]:
    """Return the header fields that every response to a pull has: its offsets and its message count."""
    return {
        SUGGESTED_BROKER: "0",
        NEXT_BEGIN_OFFSET: str(found.next_begin_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
        "count": str(found.message_count),
    }


class EndResponses:
    """Cache of the responses to pulls at the end of a queue, for one store."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._responses = Newest[tuple[int | None, int], RemotingCommand](RESPONSES)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._responses.use(),)

    def response(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """Return the response to a pull at `offset`, the end of its queue. Callers must not change it."""
        store, responses = self._store, self._responses
        ends = store.known_min_offset(topic, queue_id), offset
        response = responses.get(ends)
        if response is None:
            response = responses[ends] = not_found_response(store.get_message(topic, queue_id, offset, 1, 1))
        return response
