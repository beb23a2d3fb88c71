"""Request and reply messages, as RocketMQ's clients exchange them.

    requester ──request message: CORRELATION_ID, REPLY_TO_CLIENT, TTL──→ broker ──→ consumer
    requester ←──PUSH_REPLY_MESSAGE_TO_CLIENT── broker ←──SEND_REPLY_MESSAGE_V2, same properties── consumer

The requester is registered with the brokers of the topic by its heartbeat, so that they can push the reply. A
reply that arrives after its request has timed out is ignored.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeaderV1
from cluster.client.errors import ConfigInvalid
from cluster.client.namespaces import Namespace
from cluster.client.producer.arguments import as_message
from cluster.client.producer.sender import Choose
from cluster.client.transport.topic_route import TopicRoute
from store.common.logs import get_logger
from store.message.compression import decompress
from store.message.hosts import Host
from store.message.message import UNKNOWN_HOST, Message, MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst, decode_properties

_log = get_logger(__name__)

REPLY_TOPIC_SUFFIX = "_REPLY_TOPIC"
"""Each cluster stores its replies in the topic with its name and this suffix."""
REPLY_TYPE = "reply"
"""Value of the property MSG_TYPE of replies."""


class Requests:
    """The requests of one producer that wait for a reply. Used on the event loop of the producer."""

    def __init__(self, names: Namespace = Namespace.NONE) -> None:
        self._names = names
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def add_to(self, table: RequestTable) -> None:
        """Add the handler of pushed replies to the requests that brokers may send to the producer."""
        table.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self.respond)

    def begin(
        self, message: Message, client_id: str, timeout_ms: int
    ) -> tuple[Message, asyncio.Future[MessageExt]]:
        """Return the request message for `message`, and the future that receives the reply."""
        correlation_id = str(uuid.uuid4())
        properties = message.properties | {
            MessageConst.CORRELATION_ID: correlation_id,
            MessageConst.REPLY_TO_CLIENT: client_id,
            MessageConst.TTL: str(timeout_ms),
        }
        reply: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        reply.add_done_callback(lambda _: self._waiting.pop(correlation_id, None))
        return Message(message.topic, message.body, properties=properties, flag=message.flag), reply

    def respond(self, context: RequestContext) -> RemotingCommand:
        """Handle PUSH_REPLY_MESSAGE_TO_CLIENT: pass the reply to the request that waits for it.

        The response is a success even if no request waits: the broker then stores the reply. Raises Refused
        or MessageInvalid, which becomes the response, if the reply is malformed.
        """
        ext = context.command.ext
        header = SendMessageHeaderV1.from_ext(ext)
        properties = decode_properties(header.properties.encode())
        message = MessageExt(
            self._names.unwrap(header.topic),
            decompress(bytes(context.command.body), header.sys_flag),
            properties,
            header.flag,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            born_host=_host(ext, "bornHost"),
            store_timestamp=int(ext.get("storeTimestamp", "0")),
            store_host=_host(ext, "storeHost"),
            reconsume_times=header.reconsume_times,
        )
        correlation_id = properties.get(MessageConst.CORRELATION_ID, "")
        waiting = self._waiting.get(correlation_id)
        if waiting is None or waiting.done():
            _log.info("reply_ignored", correlation_id=correlation_id, born_host=str(message.born_host))
        else:
            waiting.set_result(message)
        return RemotingCommand.response()


def _host(ext: Mapping[str, str], field: str) -> Host:
    """Return the address in `field`, which RocketMQ's brokers may write as `/ip:port`."""
    ip, _, port = ext.get(field, "").rpartition("/")[2].rpartition(":")
    with suppress(ValueError):
        return Host(ip, int(port))
    return UNKNOWN_HOST


def create_reply_message(
    request: MessageExt, body: bytes | str, properties: Mapping[str, str] | None = None
) -> Message:
    """Return the reply to `request`, which a consumer has received. Send it with `Producer.reply`.

    Raises:
        ConfigInvalid: `request` was not sent by `request`: it lacks a property that a reply needs.
    """
    names = (MessageConst.CORRELATION_ID, MessageConst.REPLY_TO_CLIENT, MessageConst.TTL)
    for name in (MessageConst.CLUSTER, *names[:2]):
        if not request.properties.get(name):
            raise ConfigInvalid(
                f"message {request.msg_id} has no property {name}: reply only to messages of Producer.request"
            )
    given = dict(properties or {})
    given |= {name: request.properties[name] for name in names if name in request.properties}
    given[MessageConst.MSG_TYPE] = REPLY_TYPE
    topic = f"{request.properties[MessageConst.CLUSTER]}{REPLY_TOPIC_SUFFIX}"
    return as_message(topic, body, None, None, given)


def starting_at(broker_name: str) -> Choose:
    """Return a function that chooses a queue on broker `broker_name`, then on other brokers after failures.

    A requester is registered with the brokers of its topic, so the broker that stored the request can push
    the reply; other brokers may be unable to.
    """
    tried: list[str] = []

    def choose(route: TopicRoute) -> MessageQueue:
        first = [queue for queue in route.keyed if queue.broker_name == broker_name]
        queues = [*first, *(queue for queue in route.writable if queue.broker_name != broker_name)]
        if not queues:
            raise ConfigInvalid(f"topic {route.topic!r} has no writable queue: is its cluster running?")
        queue = queues[len(tried) % len(queues)]
        tried.append(queue.broker_name)
        return queue

    return choose
