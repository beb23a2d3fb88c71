"""Async admin requests that list, resend and purge the dead letters of a group (topic `%DLQ%group`).

A log cannot delete single messages. Therefore the group TOOLS_CONSUMER commits an offset in each queue of a
dead-letter topic. Messages before this offset are handled (resent or purged), later messages are pending.

    oldest … | handled | handled | pending | pending | … end
                                 ^ committed offset of TOOLS_CONSUMER
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from actors.wire.bodies.routes import decode_topic_list
from actors.wire.codes import RequestCode
from actors.wire.headers import CreateTopicHeader
from actors.wire.hot_headers import SendMessageHeader
from cluster.client.admin.aio_broker_admin import TOOLS_GROUP, BrokerAdmin
from cluster.client.errors import ConfigInvalid, TopicNotFound
from cluster.client.group.offset_client import Commit, OffsetClient
from store.message.compression import compress
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst, properties_text
from store.message.sys_flag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_ZLIB, is_compressed
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

ResendTo = Literal["group", "topic"]
RESEND_TO: tuple[ResendTo, ...] = ("group", "topic")
MESSAGES_PER_COMMIT = 32
READ_WRITE = 6

# Properties that an earlier delivery added. They are not sent again, because they would delay the message,
# send it to another topic or limit its retries.
_OF_DELIVERY = frozenset(
    {
        MessageConst.DELAY,
        MessageConst.REAL_TOPIC,
        MessageConst.REAL_QUEUE_ID,
        MessageConst.WAIT,
        MessageConst.MIN_OFFSET,
        MessageConst.MAX_OFFSET,
        MessageConst.RECONSUME_TIME,
        MessageConst.MAX_RECONSUME_TIMES,
        MessageConst.CONSUME_START_TIME,
        MessageConst.TRANSACTION_PREPARED,
        MessageConst.TIMER_DELAY_SEC,
        MessageConst.TIMER_DELAY_MS,
        MessageConst.TIMER_DELIVER_MS,
        MessageConst.TIMER_OUT_MS,
    }
)


class PendingRange(NamedTuple):
    """The offsets [begin, end) of the pending dead letters of one queue."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Dead letters of a group, the newest first.

    Attributes:
        messages: The messages of this page.
        total: Number of dead letters on all pages.
        before: Per queue, the offset before which the next page ends; None on the last page.
    """

    messages: Sequence[MessageExt]
    total: int
    before: Mapping[MessageQueue, int] | None


class DeadLetterAdmin(BrokerAdmin):
    """Requests that list, resend and purge dead letters."""

    async def dead_letter_counts(self) -> dict[str, int]:
        """Return {group: number of pending dead letters} of all groups that have a dead-letter topic."""
        responses = await self._request_nameservers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        topics = {topic for response in responses for topic in decode_topic_list(response.body)}
        groups = sorted(
            topic.removeprefix(DLQ_TOPIC_PREFIX) for topic in topics if topic.startswith(DLQ_TOPIC_PREFIX)
        )
        return {group: await self.dead_letter_count(group) for group in groups}

    async def dead_letter_count(self, group: str) -> int:
        """Return the number of pending dead letters of `group`."""
        return sum(end - begin for begin, end in (await self._pending(group)).values())

    async def dead_letters(
        self, group: str, max_messages: int = 1_000, *, include_handled: bool = False
    ) -> list[MessageExt]:
        """Return the oldest dead letters of `group`, sorted by store time.

        The properties RETRY_TOPIC and ORIGIN_MESSAGE_ID of a dead letter contain the topic and the id of the
        message that the group failed to consume.

        Args:
            group: The consumer group.
            max_messages: Maximum number of messages of each queue; there is one queue on each broker.
            include_handled: Also return messages that were resent or purged and are still stored.

        Raises:
            ConfigInvalid: `max_messages` is less than 1.
        """
        if max_messages < 1:
            raise ConfigInvalid(f"max_messages is {max_messages}: it must be greater than 0")
        found: list[MessageExt] = []
        for queue, (begin, end) in (await self._pending(group, include_handled=include_handled)).items():
            if begin < end:
                found += await self.messages_at(queue, begin, min(end - begin, max_messages))
        return sorted(found, key=lambda each: (each.store_timestamp, each.broker_name, each.queue_offset))

    async def dead_letter_page(
        self,
        group: str,
        max_messages: int = 200,
        *,
        before: Mapping[MessageQueue, int] | None = None,
        include_handled: bool = False,
    ) -> DeadLetterPage:
        """Return the newest dead letters of `group`.

        Args:
            group: The consumer group.
            max_messages: Maximum number of messages.
            before: What the page before has returned; None for the first page.
            include_handled: Also return messages that were resent or purged and are still stored.

        Raises:
            ConfigInvalid: `max_messages` is less than 1.
        """
        if max_messages < 1:
            raise ConfigInvalid(f"max_messages is {max_messages}: it must be greater than 0")
        pending = await self._pending(group, include_handled=include_handled)
        ends = {queue: min((before or {}).get(queue, end), end) for queue, (_, end) in pending.items()}
        found: list[tuple[MessageQueue, MessageExt]] = []
        begins: dict[MessageQueue, int] = {}
        for queue, (begin, _) in pending.items():
            begins[queue] = max(begin, ends[queue] - max_messages)
            if begins[queue] < ends[queue]:
                part = await self.messages_at(queue, begins[queue], ends[queue] - begins[queue])
                found += [(queue, message) for message in part]
        found.sort(key=lambda each: (-each[1].store_timestamp, each[0], -each[1].queue_offset))
        # A queue of which some were cut ends before the last one that is shown.
        left = begins | {queue: message.queue_offset + 1 for queue, message in found[max_messages:][::-1]}
        return DeadLetterPage(
            [message for _, message in found[:max_messages]],
            sum(end - begin for begin, end in pending.values()),
            left if any(left[queue] > begin for queue, (begin, _) in pending.items()) else None,
        )

    async def resend_dead_letters(
        self, group: str, messages: Iterable[MessageExt] | None = None, *, to: ResendTo = "group"
    ) -> int:
        """Resend dead letters, mark them as handled, and return their number.

        A message keeps its body, tags, keys and UNIQ_KEY. It is sent to the broker that stores the dead
        letter, or to another broker if that broker does not have the topic. The offset of handled messages
        is committed after every 32 messages. After an error, the next call may resend up to 32 messages that
        this call has sent already.

        Args:
            group: The consumer group.
            messages: Messages that `dead_letters` returned; None means all pending messages. A message is
                marked as handled only if all earlier messages of its queue are handled.
            to: "group" sends the messages to the retry topic of the group, so that only this group receives
                them. "topic" sends them to their original topic, so that all its groups receive them.

        Raises:
            ConfigInvalid: `to` is unknown, or a message is not a dead letter of `group`.
            BrokerRefused: A broker did not accept a message.
        """
        if to not in RESEND_TO:
            raise ConfigInvalid(f"to is {to!r}: it must be 'group' or 'topic'")
        pending = await self._pending(group)
        if messages is not None:
            return await self._resend(group, pending, list(messages), to)
        count = 0
        for queue, (begin, end) in pending.items():
            at = begin
            while at < end:
                part = await self.messages_at(queue, at, min(end - at, MESSAGES_PER_COMMIT))
                if not part:
                    break
                count += await self._resend(group, pending, part, to)
                at = part[-1].queue_offset + 1
        return count

    async def purge_dead_letters(
        self, group: str, until_ms: int | None = None, *, dry_run: bool = False
    ) -> int:
        """Mark the pending dead letters of `group` as handled, and return their number.

        `dead_letters(…, include_handled=True)` returns purged messages until their log file is deleted.

        Args:
            group: The consumer group.
            until_ms: Purge only messages stored before this time, in ms since the epoch; None purges all.
            dry_run: Return the number without marking the messages.
        """
        offsets = OffsetClient(self._opened(), TOOLS_GROUP)
        commits: dict[MessageQueue, Commit] = {}
        count = 0
        for queue, (begin, end) in (await self._pending(group)).items():
            target = end if until_ms is None else min(await offsets.at_time(queue, until_ms), end)
            if target > begin:
                commits[queue] = Commit(target, 0)
                count += target - begin
        if not dry_run:
            (await offsets.commit(commits)).raise_unconfirmed()
        return count

    # ---- internal ------------------------------------------------------------------------------------------

    async def _pending(
        self, group: str, *, include_handled: bool = False
    ) -> dict[MessageQueue, PendingRange]:
        try:
            queues = await self._queues(f"{DLQ_TOPIC_PREFIX}{group}")
        except TopicNotFound:
            return {}
        offsets = OffsetClient(self._opened(), TOOLS_GROUP)
        found: dict[MessageQueue, PendingRange] = {}
        for queue in queues:
            end, begin = await offsets.end(queue), await offsets.beginning(queue)
            handled = 0 if include_handled else await offsets.committed(queue) or 0
            found[queue] = PendingRange(min(max(begin, handled), end), end)
        return found

    async def _resend(
        self,
        group: str,
        pending: dict[MessageQueue, PendingRange],
        messages: list[MessageExt],
        to: ResendTo,
    ) -> int:
        for message in messages:
            if message.topic != f"{DLQ_TOPIC_PREFIX}{group}":
                raise ConfigInvalid(
                    f"the message at offset {message.queue_offset} of topic {message.topic!r} is not a dead "
                    f"letter of group {group!r}: give messages that dead_letters({group!r}) returned"
                )
        for at in range(0, len(messages), MESSAGES_PER_COMMIT):
            moved: dict[MessageQueue, Commit] = {}
            for message in sorted(
                messages[at : at + MESSAGES_PER_COMMIT], key=lambda each: each.queue_offset
            ):
                await self._send_again(group, message, to)
                queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
                left = pending.get(queue)
                if left is not None and message.queue_offset == left.begin:
                    pending[queue] = PendingRange(left.begin + 1, left.end)
                    moved[queue] = Commit(left.begin + 1, 0)
            (await OffsetClient(self._opened(), TOOLS_GROUP).commit(moved)).raise_unconfirmed()
        return len(messages)

    async def _send_again(self, group: str, message: MessageExt, to: ResendTo) -> None:
        properties = {name: value for name, value in message.properties.items() if name not in _OF_DELIVERY}
        retry_topic = f"{RETRY_TOPIC_PREFIX}{group}"
        origin = properties.get(MessageConst.RETRY_TOPIC, "")
        topic = retry_topic
        if to == "topic" and origin:
            topic = origin
            del properties[MessageConst.RETRY_TOPIC]
        address = await self._master_with_topic(topic, message.broker_name, is_created=topic == retry_topic)
        body, sys_flag = message.body, 0
        if message.body_error:  # resend the bytes as they are stored, with their marks
            sys_flag = message.sys_flag & (COMPRESSED | COMPRESSION_MASK)
        elif is_compressed(message.sys_flag):
            body, sys_flag = compress(body, message.sys_flag & COMPRESSION_MASK or COMPRESSION_ZLIB)
        header = SendMessageHeader(
            TOOLS_GROUP,
            topic,
            -1,  # any queue
            properties_text(properties),
            sys_flag,
            message.born_timestamp,
            message.flag,
        )
        await self._call(address, RequestCode.SEND_MESSAGE_V2, header, body)

    async def _master_with_topic(self, topic: str, broker: str, *, is_created: bool) -> str:
        """Return the address of a master that has `topic`, preferably the master of `broker`.

        If `broker` does not have the topic and `is_created` is True, the topic is created there. Raises
        TopicNotFound if no broker has the topic and `is_created` is False.
        """
        try:
            masters = (await self._opened().routes.get(topic)).masters()
        except TopicNotFound:
            if not is_created:
                raise
            masters = {}
        if broker in masters:
            return masters[broker]
        if not is_created and masters:
            return next(iter(masters.values()))
        address = await self._master(broker)
        await self._call(
            address, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(topic, 1, 1, READ_WRITE)
        )
        return address
