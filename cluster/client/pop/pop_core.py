"""PopCore: the implementation of the pop consumer behind the blocking and the async API.

    receive ──► pop from each broker in turn ──► messages
                  └─ nothing ──► wait for a NOTIFICATION of any broker ──► pop again

A wait claims nothing, so a call that ends early leaves no message claimed. With one broker, the pop itself
waits there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import orjson

from actors.wire.bodies.pops import (
    INIT_MAX,
    AckMessageHeader,
    BatchAck,
    ChangeInvisibleTimeHeader,
    NotificationHeader,
    PopMessageHeader,
    encode_batch_acks,
    popped_messages,
)
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from cluster.client.errors import (
    ClientClosed,
    ClientError,
)
from cluster.client.message_selector import MessageSelector
from cluster.client.pop.pop_config import PopConfig
from cluster.client.pop.pop_member import LONG_POLL_MS, PopMember, receipt_of
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.pop_records import ClaimKey, Receipt, real_topic
from store.message.properties import MessageConst

_log = get_logger(__name__)


class PopCore(PopMember):
    """One pop consumer. Create it on the event loop that runs it."""

    def __init__(self, config: PopConfig, clock: Clock | None = None) -> None:
        super().__init__(config, config.consume_from, clock)
        self.config = config

    async def receive(
        self,
        topic: str,
        selector: MessageSelector,
        max_messages: int,
        timeout_ms: float,
        invisible_ms: int,
        *,
        is_ordered: bool = False,
    ) -> list[MessageExt]:
        """Return up to `max_messages` messages; an empty list if none arrive within `timeout_ms`.

        Raises ClientError if no broker of the topic can be asked.
        """
        wrapped = self._names.wrap(topic)
        deadline_ms = self.instance.now_ms() + timeout_ms
        while True:
            brokers = await self._brokers(wrapped)
            await self._subscribe(wrapped, selector)
            left_ms = max(int(deadline_ms - self.instance.now_ms()), 0)
            wait_ms = min(left_ms, LONG_POLL_MS) if len(brokers) == 1 else 0
            header = PopMessageHeader(
                self.config.group,
                wrapped,
                -1,
                max_messages,
                invisible_ms,
                wait_ms,
                init_mode=INIT_MAX if self.config.consume_from == "latest" else 0,
                exp_type=selector.type,
                exp=selector.expression,
                order=is_ordered,
            )
            messages = await self._pop_any(brokers, header)
            if messages or self.instance.now_ms() >= deadline_ms:
                self._names.unwrap_messages(messages)
                return messages
            if len(brokers) > 1:
                notification = NotificationHeader(
                    self.config.group, wrapped, -1, min(left_ms, LONG_POLL_MS), order=is_ordered
                )
                await self._wait(brokers, notification)

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """Acknowledge messages. Raises ConfigInvalid, ClientError."""
        claims: dict[str, dict[tuple[ClaimKey, int, str], tuple[Receipt, list[int]]]] = {}
        for message in messages:
            receipt = receipt_of(message)
            topic = self._names.wrap(message.topic)
            key = ClaimKey(topic, self.config.group, receipt.queue_id, receipt.start_offset, receipt.pop_ms)
            of_broker = claims.setdefault(receipt.broker_name, {})
            marks = of_broker.setdefault((key, receipt.revive_queue, receipt.kind), (receipt, []))
            marks[1].append(receipt.offset)
        for broker_name, of_broker in claims.items():
            acks = [
                BatchAck(key.group, key.topic, kind, key, receipt.invisible_ms, queue, sorted(offsets))
                for (key, queue, kind), (receipt, offsets) in of_broker.items()
            ]
            await self._ack(broker_name, acks)

    async def change(self, message: MessageExt, invisible_ms: int) -> None:
        """Make a message visible again after another time.

        Raises ConfigInvalid, ReceiptExpired, ClientError.
        """
        receipt, topic = receipt_of(message), self._names.wrap(message.topic)
        header = ChangeInvisibleTimeHeader(
            self.config.group,
            real_topic(topic, self.config.group, receipt.kind),
            receipt.queue_id,
            receipt.encode(),
            receipt.offset,
            invisible_ms,
        )
        changed = await self._change(topic, receipt.broker_name, header)
        if changed.pop_time is None:
            return
        message.properties[MessageConst.POP_CK] = receipt._replace(
            start_offset=receipt.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time or invisible_ms,
            revive_queue=receipt.revive_queue if changed.revive_qid is None else changed.revive_qid,
        ).encode()

    async def _pop_any(
        self, brokers: Iterable[tuple[str, str]], header: PopMessageHeader
    ) -> list[MessageExt]:
        """Return the messages of the first broker that has some. Raises the error if all fail."""
        errors: list[ClientError] = []
        has_answer = False
        for name, address in brokers:
            try:
                messages = await self._pop(name, address, header)
            except ClientClosed:
                raise
            except ClientError as error:
                _log.warning("pop_failed", broker=name, topic=header.topic, error=str(error))
                errors.append(error)
                await self.instance.routes.refresh_or_keep(header.topic)
                continue
            has_answer = True
            if messages:
                return messages
        if errors and not has_answer:
            raise errors[-1]
        return []

    async def _pop(self, name: str, address: str, header: PopMessageHeader) -> list[MessageExt]:
        command = RemotingCommand(RequestCode.POP_MESSAGE, header.to_ext())
        return await self._popped(name, address, command, header.poll_time, popped_messages)

    async def _wait(self, brokers: Iterable[tuple[str, str]], header: NotificationHeader) -> None:
        """Wait until a broker has a message, but for the poll time of `header` at most."""

        async def notified(address: str) -> bool:
            command = RemotingCommand(RequestCode.NOTIFICATION, header.to_ext())
            try:
                response = await self.instance.request(
                    address, command, header.poll_time + self.config.request_timeout_ms
                )
            except ClientError:  # the next pop reports it
                return False
            return response.ext.get("hasMsg") == "true"

        waits = [
            self.instance.spawn(notified(address), "pop-wait", is_awaited=True) for _, address in brokers
        ]
        try:
            for each in asyncio.as_completed(waits):
                if await each:
                    return
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _ack(self, broker_name: str, acks: Sequence[BatchAck]) -> None:
        address = await self._address(acks[0].requested_topic, broker_name)
        if len(acks) == 1 and len(acks[0].offsets) == 1:
            ack, (offset,) = acks[0], acks[0].offsets
            receipt = Receipt(
                ack.key.start_offset, ack.key.pop_ms, ack.invisible_ms, ack.revive_queue, ack.kind,
                broker_name, ack.key.queue_id, offset,
            )  # fmt: skip
            topic = real_topic(ack.requested_topic, ack.group, ack.kind)
            header = AckMessageHeader(ack.group, topic, receipt.queue_id, receipt.encode(), offset)
            command = RemotingCommand(RequestCode.ACK_MESSAGE, header.to_ext())
        else:
            body = orjson.dumps(encode_batch_acks(broker_name, acks))
            command = RemotingCommand(RequestCode.BATCH_ACK_MESSAGE, body=body)
        await self.instance.invoke(address, command)
