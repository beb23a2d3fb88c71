"""Sticky keys: injected routes that change while a group has not consumed the messages of a key."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import pytest

from cluster.client.errors import BrokerUnreachable, QueueNotConsumed
from cluster.client.hooks import SendContext
from cluster.client.producer.sticky_keys import (
    HOLD_ATTEMPTS,
    NEAR_MESSAGES,
    KeyProgress,
    StickyChoice,
    StickyKeys,
    StickyKeysHook,
)
from cluster.client.results import SendResult, SendStatus
from cluster.client.transport.topic_route import QueueShare, TopicRoute
from store.message.message import Message
from store.message.message_queue import MessageQueue

ONE = QueueShare("a", 1, 1, 6)
TWO = QueueShare("b", 1, 1, 6)
READ_ONLY = replace(ONE, perm=4)
DRAINED = replace(READ_ONLY, left_at_ms=1)
A, B = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0)


def route(*shares: QueueShare) -> TopicRoute:
    return TopicRoute("T", shares, {share.broker_name: {0: "host:1"} for share in shares})


class Groups:
    """Progress of a group in memory."""

    def __init__(self) -> None:
        self.consumed: dict[MessageQueue, int] = defaultdict(int)
        self.end: dict[MessageQueue, int] = defaultdict(int)
        self.requested: list[MessageQueue] = []
        self.is_reachable = True

    async def progress(self, queue: MessageQueue) -> KeyProgress:
        self.requested.append(queue)
        if not self.is_reachable:
            raise BrokerUnreachable("no connection to host:1")
        return KeyProgress(self.consumed[queue], self.end[queue])


class Keys:
    """StickyKeys with a group in memory. `send` acknowledges at the next offset of the chosen queue."""

    def __init__(self) -> None:
        self.groups = Groups()
        self.keys = StickyKeys(["group"], self.groups)
        self.hook = StickyKeysHook()
        self.held = 0

    def begin(self, key: str, messages: int = 1) -> tuple[StickyChoice, SendContext]:
        context = SendContext("p", "T", [Message("T", b"")] * messages)
        return self.keys.choice(key, messages, context), context

    def end(self, context: SendContext, queue: MessageQueue | None, messages: int = 1) -> None:
        if queue is not None:
            context.result = SendResult(SendStatus.SEND_OK, "id", queue, self.groups.end[queue])
            self.groups.end[queue] += messages
        self.hook.after_send(context)

    def send(self, key: str, now: TopicRoute, messages: int = 1) -> MessageQueue:
        choice, context = self.begin(key, messages)
        for _ in range(HOLD_ATTEMPTS):
            try:
                queue = choice(now)
                break
            except QueueNotConsumed:
                self.held += 1
        else:
            queue = choice(now)
        self.end(context, queue, messages)
        return queue

    def poll(self) -> None:
        asyncio.run(self.keys.poll())


@pytest.fixture
def keys() -> Keys:
    return Keys()


def moving_key() -> str:
    """Return a key that moves from broker a to b once b has a queue."""
    return next(key for key in map(str, range(99)) if Keys().send(key, route(ONE, TWO)) == B)


KEY = moving_key()


def test_a_key_stays_on_its_queue_until_its_messages_are_consumed(keys: Keys) -> None:
    for _ in range(3):
        assert keys.send(KEY, route(ONE)) == A
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.groups.consumed[A] = 3
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == A  # offset 3 is not consumed
    keys.groups.consumed[A] = 5
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == B
    assert keys.send(KEY, route(ONE, TWO)) == B


def test_a_send_is_held_once_the_group_has_nearly_caught_up(keys: Keys) -> None:
    """A key to which messages are sent all the time would otherwise never move."""
    keys.send(KEY, route(ONE), messages=NEAR_MESSAGES + 1)
    keys.send(KEY, route(ONE, TWO))
    keys.poll()
    assert (keys.send(KEY, route(ONE, TWO)), keys.held) == (A, 0)
    keys.groups.consumed[A] = 5
    keys.poll()
    choice, context = keys.begin(KEY)
    with pytest.raises(QueueNotConsumed):
        choice(route(ONE, TWO))
    keys.groups.consumed[A] = keys.groups.end[A]
    keys.poll()
    assert choice(route(ONE, TWO)) == B
    keys.end(context, B)


def test_sends_are_not_held_again_while_the_group_consumes_nothing(keys: Keys) -> None:
    keys.send(KEY, route(ONE))
    keys.send(KEY, route(ONE, TWO))
    keys.poll()
    for _ in range(3):
        assert keys.send(KEY, route(ONE, TWO)) == A
    assert keys.held == HOLD_ATTEMPTS
    keys.groups.consumed[A] = 1
    keys.poll()
    keys.send(KEY, route(ONE, TWO))
    assert keys.held == 2 * HOLD_ATTEMPTS


def test_a_key_without_unconsumed_messages_follows_the_route_at_once(keys: Keys) -> None:
    assert keys.send(KEY, route(ONE, TWO)) == B
    assert keys.send("other key", route(ONE)) == A


def test_a_key_of_a_read_only_queue_is_held_until_it_is_consumed(keys: Keys) -> None:
    keys.send(KEY, route(TWO))
    read_only = replace(TWO, perm=4)
    choice, context = keys.begin(KEY)
    for _ in range(2):
        with pytest.raises(QueueNotConsumed, match=r"T.*b.*group group has not consumed.*sticky_key_groups"):
            choice(route(ONE, read_only))
    keys.groups.consumed[B] = 1
    keys.poll()
    assert choice(route(ONE, read_only)) == A
    keys.end(context, A)


def test_a_drained_broker_that_left_the_routes_holds_no_key(keys: Keys) -> None:
    keys.send(KEY, route(ONE))
    assert keys.send(KEY, route(DRAINED, TWO)) == B


def test_a_send_in_flight_keeps_its_key_on_the_queue(keys: Keys) -> None:
    first, first_context = keys.begin(KEY)
    assert first(route(ONE)) == A
    keys.groups.consumed[A] = 10
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.end(first_context, A)
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == B


def test_after_an_unknown_outcome_the_whole_queue_must_be_consumed(keys: Keys) -> None:
    choice, context = keys.begin(KEY)
    choice(route(ONE))
    keys.end(context, None)
    keys.groups.end[A], keys.groups.consumed[A] = 6, 5
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.groups.consumed[A] = keys.groups.end[A]
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == B


def test_a_retry_moves_only_after_the_earlier_attempt_would_be_consumed(keys: Keys) -> None:
    choice, context = keys.begin(KEY)
    assert choice(route(ONE)) == A
    keys.groups.end[A] = 1  # the attempt timed out, but its message is stored
    with pytest.raises(QueueNotConsumed):
        choice(route(READ_ONLY, TWO))
    keys.poll()
    with pytest.raises(QueueNotConsumed):
        choice(route(READ_ONLY, TWO))
    keys.groups.consumed[A] = 1
    keys.poll()
    assert choice(route(READ_ONLY, TWO)) == B
    keys.end(context, B)


def test_a_batch_counts_with_all_of_its_messages(keys: Keys) -> None:
    keys.send(KEY, route(ONE), messages=5)
    keys.send(KEY, route(ONE, TWO))
    keys.groups.consumed[A] = 5
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == A


def test_progress_is_requested_only_for_queues_that_keys_want_to_leave(keys: Keys) -> None:
    keys.send(KEY, route(ONE))
    keys.poll()
    assert keys.groups.requested == []
    keys.send(KEY, route(ONE, TWO))
    keys.groups.is_reachable = False
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == A
    keys.groups.is_reachable = True
    keys.groups.consumed[A] = keys.groups.end[A]
    keys.poll()
    assert keys.send(KEY, route(ONE, TWO)) == B
    keys.poll()
    assert keys.groups.requested == [A, A]
