"""What a consumer tells administrators of itself (RocketMQ ConsumerRunningInfo)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from actors.remoting.admin_bodies import queue_key
from actors.remoting.chain import RequestContext
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.groups import SubscriptionData
from actors.remoting.table import RequestTable
from cluster.client.config import MIB
from cluster.client.core.group_session import GroupSession, tags_of
from cluster.client.core.instance import ClientInstance
from store.message.message_queue import MessageQueue


class QueueInfo(NamedTuple):
    """One queue that a consumer holds; the messages at offsets [first, end) are fetched and not finished."""

    commit_offset: int
    first: int
    end: int
    messages: int = 0
    size_bytes: int = 0
    is_dropped: bool = False

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's ProcessQueueInfo."""
        return {
            "cachedMsgCount": self.messages,
            "cachedMsgMaxOffset": max(self.end - 1, 0),
            "cachedMsgMinOffset": self.first,
            "cachedMsgSizeInMiB": self.size_bytes // MIB,
            "commitOffset": self.commit_offset,
            "droped": self.is_dropped,
            "lastConsumeTimestamp": 0,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": 0,
            "locked": False,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


def answer_running_info(
    table: RequestTable,
    instance: ClientInstance,
    session: GroupSession,
    queues: Callable[[], Mapping[MessageQueue, QueueInfo]],
    threads: int,
) -> None:
    """Have brokers' GET_CONSUMER_RUNNING_INFO answered; `threads`: how many listeners run at once."""
    started_ms = instance.clock.wall_ms()

    def answer(_context: RequestContext) -> RemotingCommand:
        subscriptions = [
            SubscriptionData(topic, expression, tags_of(expression)).to_json()
            for topic, expression in session.subscriptions.items()
        ]
        body = {
            "mqPopTable": {},
            "mqTable": {queue_key(queue): info.to_json() for queue, info in sorted(queues().items())},
            "properties": {
                "PROP_CLIENT_VERSION": "V5_3_3",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(instance.config.addresses()),
                "PROP_THREADPOOL_CORE_SIZE": str(threads),
            },
            "statusTable": {},
            "subscriptionSet": subscriptions,
            "userConsumerInfo": {},
        }
        return RemotingCommand.response(body=orjson.dumps(body))

    table.add(RequestCode.GET_CONSUMER_RUNNING_INFO, answer)
