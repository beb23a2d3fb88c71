"""SendBack: returns messages that a listener cannot finish to their broker (CONSUMER_SEND_MSG_BACK)."""

from __future__ import annotations

from collections.abc import Sequence

from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader
from cluster.client.config import PushConfig
from cluster.client.errors import ClientError
from cluster.client.namespaces import Namespace
from cluster.client.transport.instance import ClientInstance
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue

_log = get_logger(__name__)

DEAD_LETTER_LEVEL = -1
TIMED_OUT_LEVEL = 3  # ten seconds, as RocketMQ's consumers request


class SendBackClient:
    """Sends messages of one group back to their broker, for a later retry or as dead letters."""

    def __init__(self, instance: ClientInstance, config: PushConfig) -> None:
        self._instance = instance
        self._config = config
        self._names = Namespace(config.namespace)

    async def send(
        self, queue: MessageQueue, messages: Sequence[MessageExt], delay_level: int
    ) -> list[MessageExt]:
        """Send `messages` of `queue` back with a delay level. Return those that the broker did not accept.

        Level 0 lets the broker choose the delay, DEAD_LETTER_LEVEL moves the messages to the dead-letter
        topic of the group. The broker also does that with a message that was retried
        `max_reconsume_times` times.
        """
        return [each for each in messages if not await self._is_accepted(queue, each, delay_level)]

    async def _is_accepted(self, queue: MessageQueue, message: MessageExt, delay_level: int) -> bool:
        config = self._config
        header = ConsumerSendMsgBackHeader(
            message.commit_log_offset,
            config.group,
            delay_level,
            message.msg_id,
            self._names.wrap(message.topic),
            max_reconsume_times=config.max_reconsume_times,
        )
        try:
            address = self._instance.master_of(queue.topic, queue.broker_name)
            command = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())
            await self._instance.invoke(address, command)
        except ClientError as error:
            _log.warning("send_back_failed", group=config.group, msg_id=message.msg_id, error=str(error))
            return False
        return True


class DiscardFailed(SendBackClient):
    """Discards messages after the last retry of a broadcasting consumer, as RocketMQ does."""

    async def send(
        self, queue: MessageQueue, messages: Sequence[MessageExt], delay_level: int
    ) -> list[MessageExt]:
        """Log and discard `messages`."""
        for message in messages:
            _log.error(
                "message_discarded",
                reason="the last retry failed, and a broadcasting group has no dead-letter topic",
                group=self._config.group,
                queue=str(queue),
                offset=message.queue_offset,
                msg_id=message.msg_id,
            )
        return []


def make_send_back(instance: ClientInstance, config: PushConfig) -> SendBackClient:
    """Return the destination of messages that a consumer cannot finish."""
    return (DiscardFailed if config.is_broadcasting else SendBackClient)(instance, config)
