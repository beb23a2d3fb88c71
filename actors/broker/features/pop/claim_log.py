"""ClaimLog: writes check points and acks to RocketMQ's revive topic.

A check point is delivered a second before its messages become visible again, and its acks at that time, so
they pass through the timer topic first (docs/store-format.md#pop-records):

    rmq_sys_wheel_timer ──when due──► rmq_sys_REVIVE_LOG_<cluster>, queue of the receipt ──► `ReviveLog`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.topics import TIMER_TOPIC, revive_topic
from actors.broker.features.pop.claims import Claim
from actors.broker.features.pop.pop_counts import ACK, CHECK_POINT, PopCounts
from actors.broker.features.timer.timer_messages import TIMER_QUEUE_ID, timer_properties
from store.common.clock import Clock
from store.message.pop_records import CHECK_POINT_TAG, CheckPoint, ClaimAck, ClaimKey
from store.message.properties import MessageConst, encode_properties
from store.message.record import RecordDraft
from store.message_store import MessageStore

MARK_TAG: Final = "raymq-mark"
CHECK_POINT_AHEAD_MS: Final = 1000


class ClaimLog:
    """Writes the claims of one broker to its store."""

    def __init__(
        self, settings: BrokerSettings, store: MessageStore, clock: Clock, host: bytes, counts: PopCounts
    ) -> None:
        """Create the writer; `host` is the broker's packed address."""
        self._broker_name = settings.broker_name
        self._topic = revive_topic(settings.cluster_name)
        self._store = store
        self._clock = clock
        self._host = host
        self._counts = counts
        self.own: dict[ClaimKey, Claim] = {}
        """The stored claims of this process, until `ReviveLog` has read their check points."""

    def store_claim(self, claim: Claim) -> tuple[CheckPoint, int]:
        """Append the check point of a claim. Return it, and the end of its record. Raises StoreError."""
        point = claim.check_point()
        end = self.store_point(point, claim.revive_queue)
        self.own[claim.key] = claim
        return point, end

    def store_point(self, point: CheckPoint, revive_queue: int) -> int:
        """Append a check point. Return the end of its record. Raises StoreError."""
        body, unique_key = point.encode(self._broker_name), point.unique_key(self._broker_name)
        deliver_ms = point.revive_ms - CHECK_POINT_AHEAD_MS
        end = self._append(body, CHECK_POINT_TAG, unique_key, revive_queue, deliver_ms)
        self._counts.put(point.key, CHECK_POINT)
        return end

    def store_acks(self, key: ClaimKey, offsets: Sequence[int], invisible_ms: int, revive_queue: int) -> int:
        """Append acks of a stored claim. Return the end of the record. Raises StoreError."""
        ack = ClaimAck(key, tuple(offsets))
        unique_key = ack.unique_key(self._broker_name)
        body = ack.encode(self._broker_name)
        end = self._append(body, ack.tag, unique_key, revive_queue, key.pop_ms + invisible_ms)
        self._counts.put(key, ACK)
        return end

    def store_mark(self, revive_queue: int, deliver_ms: int) -> None:
        """Append a mark that arrives in the revive topic after all records due before it. Raises StoreError.

        RocketMQ's broker ignores it.
        """
        unique_key = f"{self._topic}@{revive_queue}@{deliver_ms}@{MARK_TAG}"
        self._append(b"", MARK_TAG, unique_key, revive_queue, deliver_ms)

    def _append(self, body: bytes, tag: str, unique_key: str, revive_queue: int, deliver_ms: int) -> int:
        now_ms = self._clock.wall_ms()
        properties = {MessageConst.TAGS: tag, MessageConst.UNIQ_KEY: unique_key}
        topic, queue_id = self._topic, revive_queue
        if deliver_ms > now_ms:
            properties |= timer_properties(topic, queue_id, deliver_ms)
            topic, queue_id = TIMER_TOPIC, TIMER_QUEUE_ID
        draft = RecordDraft(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            born_timestamp=now_ms,
            born_host=self._host,
        )
        result = self._store.append(draft)
        return result.physical_offset + result.size_bytes
