"""The response to GET_CONSUMER_RUNNING_INFO: RocketMQ's ConsumerRunningInfo, the state of a consumer."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.body import queue_map
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from cluster.client.config import MIB
from cluster.client.group.group_session import GroupSession
from cluster.client.transport.instance import ClientInstance
from store.message.message_queue import MessageQueue


class QueueInfo(NamedTuple):
    """State of one assigned queue. Messages at the offsets [first, end) are fetched and not finished.

    `pulled_ms` is the time of the last pull, `consumed_ms` the time at which a listener last got messages,
    `locked_ms` the time at which an ordered consumer last locked the queue. All are in ms since the epoch, or
    0.
    """

    commit_offset: int
    first: int
    end: int
    messages: int = 0
    size_bytes: int = 0
    is_dropped: bool = False
    pulled_ms: int = 0
    consumed_ms: int = 0
    locked_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fields of RocketMQ's ProcessQueueInfo."""
        return {
            "cachedMsgCount": self.messages,
            "cachedMsgMaxOffset": max(self.end - 1, 0),
            "cachedMsgMinOffset": self.first,
            "cachedMsgSizeInMiB": self.size_bytes // MIB,
            "commitOffset": self.commit_offset,
            "droped": self.is_dropped,
            "lastConsumeTimestamp": self.consumed_ms,
            "lastLockTimestamp": self.locked_ms,
            "lastPullTimestamp": self.pulled_ms,
            "locked": self.locked_ms > 0,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }


def respond_running_info(
    table: RequestTable,
    instance: ClientInstance,
    session: GroupSession,
    queues: Callable[[], Mapping[MessageQueue, QueueInfo]],
    threads: int,
    status: Callable[[str], dict[str, Any]] | None = None,
    *,
    ordered: bool = False,
) -> None:
    """Register the handler of GET_CONSUMER_RUNNING_INFO in `table`.

    Args:
        table: The request table of the client.
        instance: The client instance.
        session: The group session, which has the subscriptions.
        queues: Returns the state of each assigned queue.
        threads: Maximum number of concurrent listener calls.
        status: Returns RocketMQ's ConsumeStatus of a topic. None for a pull consumer.
        ordered: True if the listener gets the messages of each queue in order.
    """
    started_ms = instance.clock.wall_ms()

    def respond(context: RequestContext) -> RemotingCommand:
        subscriptions = [
            selector.subscription(topic).to_json() for topic, selector in session.subscriptions.items()
        ]
        body = {
            "mqPopTable": {},
            "mqTable": queue_map({queue: info.to_json() for queue, info in sorted(queues().items())}),
            "properties": {
                "PROP_CLIENT_VERSION": "V5_3_3",
                "PROP_CONSUMEORDERLY": str(ordered).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(instance.config.addresses()),
                "PROP_THREADPOOL_CORE_SIZE": str(threads),
            },
            "statusTable": {}
            if status is None
            else {topic: status(topic) for topic in session.subscriptions},
            "subscriptionSet": subscriptions,
            "userConsumerInfo": {},
        }
        if context.command.ext.get("jstackEnable") == "true":
            body["jstack"] = stacks()
        return RemotingCommand.response(body=orjson.dumps(body))

    table.add(RequestCode.GET_CONSUMER_RUNNING_INFO, respond)


def stacks() -> str:
    """Return the stack of each thread, one line per frame, in the format of RocketMQ's `jstack` text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 -- the only way to read the stacks of other threads
        name = names.get(ident, str(ident))
        lines.append(f"{name:<40}TID: {ident} STATE: RUNNABLE")
        lines += [
            f"{name:<40}{step.name}({step.filename.rpartition('/')[2]}:{step.lineno})"
            for step in reversed(traceback.extract_stack(frame))
        ]
        lines.append("")
    return "\n".join(lines)
