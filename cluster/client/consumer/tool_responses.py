"""Responses of a consumer to requests of admin tools, which the broker forwards.

221 GET_CONSUMER_STATUS_FROM_CLIENT    returns the offsets of the consumer's queues of a topic
309 CONSUME_MESSAGE_DIRECTLY           calls the listener with one message and returns the result
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import orjson

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.consumer_status import encode_of_member
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from cluster.client.consumer.listener import Outcome
from cluster.client.consumer.running_info import QueueInfo
from cluster.client.namespaces import Namespace
from store.message.fetched import decode_messages
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst
from store.store_errors import RecordDamaged

CallListener = Callable[[MessageExt], Awaitable[Outcome]]


def respond_status(table: RequestTable, queues: Callable[[], Mapping[MessageQueue, QueueInfo]]) -> None:
    """Register the handler of GET_CONSUMER_STATUS_FROM_CLIENT in `table`."""

    def respond(context: RequestContext) -> RemotingCommand:
        topic = context.command.ext.get("topic", "")
        offsets = {queue: info.commit_offset for queue, info in queues().items() if queue.topic == topic}
        return RemotingCommand.response(body=encode_of_member(offsets))

    table.add(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, respond)


def respond_consume_directly(
    table: RequestTable, call: CallListener, now_ms: Callable[[], int], names: Namespace = Namespace.NONE
) -> None:
    """Register the handler of CONSUME_MESSAGE_DIRECTLY in `table`.

    `call` calls the listener with one message and returns the outcome; `names` translates its topic.
    """

    async def consume(record: bytes, broker_name: str) -> RemotingCommand:
        try:
            [message], _ = decode_messages(record, 0, 1, broker_name)
        except (RecordDamaged, ValueError) as error:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR,
                f"the body of CONSUME_MESSAGE_DIRECTLY is not a valid record: {error}",
            )
        message.topic = message.properties.get(MessageConst.RETRY_TOPIC, message.topic)
        names.unwrap_messages([message])
        began_ms = now_ms()
        outcome, remark = await call(message), None
        if isinstance(outcome, Exception):
            result, remark = "CR_THROW_EXCEPTION", f"{type(outcome).__name__}: {outcome}"
        else:
            result = "CR_SUCCESS" if outcome is True else "CR_LATER"
        result_body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": False,
            "remark": remark,
            "spentTimeMills": now_ms() - began_ms,
        }
        return RemotingCommand.response(body=orjson.dumps(result_body))

    def respond(context: RequestContext) -> None:
        command = context.command
        context.spawn(consume(bytes(command.body), command.ext.get("brokerName", "")))

    table.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, respond)
