"""QueueEnds: responses to pulls at the ends of their queues, where most held pulls are.

They need no read, and queues that begin and end at the same offsets share one response.
"""

from __future__ import annotations

from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand, SharedResponse
from store.message_store import MessageStore
from store.reading.message_reader import GetMessageResult

_RESPONSES_MAX = 1024


def not_found(found: GetMessageResult) -> SharedResponse:
    """Return the response to pulls that found no message."""
    return SharedResponse.response(ResponseCode.PULL_NOT_FOUND, found.status.name, offsets_of(found))


def offsets_of(found: GetMessageResult) -> dict[str, str]:
    """Return the fields of the response to any pull."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(found.next_begin_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
        "count": str(found.message_count),
    }


class QueueEnds:
    """The responses at the ends of one store's queues."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._responses: dict[tuple[int | None, int], RemotingCommand] = {}

    def response(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """Return the response to a pull at this end of its queue; many requests may share the command."""
        store, responses = self._store, self._responses
        ends = store.known_min_offset(topic, queue_id), offset
        response = responses.get(ends)
        if response is None:
            if len(responses) >= _RESPONSES_MAX:
                responses.clear()
            response = responses[ends] = not_found(store.get_message(topic, queue_id, offset, 1, 1))
        return response
