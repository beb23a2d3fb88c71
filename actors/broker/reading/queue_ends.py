"""QueueEnds: pulls that stand at the ends of their queues, as most held ones do when they come and go.

That nothing is there is known without a read, and all whose queues begin and end at the same offsets get the
same answer.
"""

from __future__ import annotations

from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand, SharedAnswer
from store.message_store import MessageStore
from store.reading.message_reader import GetMessageResult

_ANSWERS_MAX = 1024


def not_found(found: GetMessageResult) -> SharedAnswer:
    """The answer to pulls that have found nothing new."""
    return SharedAnswer.response(ResponseCode.PULL_NOT_FOUND, found.status.name, offsets_of(found))


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
        self._answers: dict[tuple[int | None, int], RemotingCommand] = {}

    def answer(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """What a pull gets there; the same command may be given to many."""
        store, answers = self._store, self._answers
        ends = store.known_min_offset(topic, queue_id), offset
        answer = answers.get(ends)
        if answer is None:
            if len(answers) >= _ANSWERS_MAX:
                answers.clear()
            answer = answers[ends] = not_found(store.get_message(topic, queue_id, offset, 1, 1))
        return answer
