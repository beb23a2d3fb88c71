"""Claim: a received task, which runs nowhere else while its claim is renewed."""

from __future__ import annotations

import asyncio

from cluster.client.aio import PopConsumer
from cluster.client.errors import ClientError, ReceiptExpired
from store.common.logs import get_logger
from store.message.message import MessageExt

_log = get_logger(__name__)


class Claim:
    """A message that stays invisible to other workers until it is settled, or its consumer is closed.

    Create it on the event loop of the consumer.
    """

    def __init__(self, consumer: PopConsumer, message: MessageExt, invisible_ms: int) -> None:
        self.message = message
        self._consumer, self._invisible_ms = consumer, invisible_ms
        self._changing = asyncio.Lock()  # a renewal changes the receipt that an ack needs
        self._renewal = consumer.core.instance.spawn(self._renew(), "claim-renewal")

    async def ack(self) -> None:
        """Acknowledge the message. Raises ClientError."""
        await self.end()
        await self._consumer.ack(self.message)

    async def nack(self, delay_ms: int = 0) -> None:
        """Make the message visible again after a delay. Raises ClientError."""
        await self.end()
        await self._consumer.nack(self.message, delay_ms)

    async def end(self) -> None:
        """Stop to renew the claim."""
        async with self._changing:
            self._renewal.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._invisible_ms / 3000)
            try:
                async with self._changing:
                    await self._consumer.extend(self.message, self._invisible_ms)
            except ReceiptExpired:
                return _log.warning("claim_lost", message=self.message.msg_id)
            except ClientError as error:
                _log.warning("renewal_failed", message=self.message.msg_id, error=str(error))
