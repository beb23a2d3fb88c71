"""QueueEnds: pulls that stand at the ends of their queues, as most held ones do when they come and go.

That nothing is there is known without a read, and all who stand at one place get the same answer.
"""

from __future__ import annotations

from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from store.message_reader import GetMessageResult
from store.message_store import MessageStore

_ANSWERS_MAX = 1024


def not_found(found: GetMessageResult) -> RemotingCommand:
    """The answer to a pull that has found nothing new."""
    return RemotingCommand.response(ResponseCode.PULL_NOT_FOUND, found.status.name, offsets_of(found))


def offsets_of(found: GetMessageResult) -> dict[str, str]:
    """The fields of the answer to any pull."""
    return {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(found.next_begin_offset),
        "minOffset": str(found.min_offset),
        "maxOffset": str(found.max_offset),
        "count": str(found.message_count),
    }


class QueueEnds:
    """The ends of one store's queues."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._answers: dict[tuple[str, int, int, int], RemotingCommand] = {}
        self._dispatched = -1

    def is_at(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a read at this offset finds nothing, and no fault in asking for it."""
        return offset == self._store.max_offset(topic, queue_id)

    def answer(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """What a pull gets there; the same command may be given to many."""
        store = self._store
        dispatched = store.positions.dispatched
        if dispatched != self._dispatched or len(self._answers) >= _ANSWERS_MAX:
            self._answers.clear()  # queues may have begun, gone or been cut since
            self._dispatched = dispatched
        place = (topic, queue_id, offset, store.min_offset(topic, queue_id))
        answer = self._answers.get(place)
        if answer is None:
            found = store.get_message(topic, queue_id, offset, 1, 1)
            answer = self._answers[place] = not_found(found)
        return answer
