"""Retries: what happens to messages that a listener did not consume (`PushConfig.retry`).

    in place   failed ─ back-off ─→ listener            (up to `max_reconsume_times`, then)
                  └ CONSUMER_SEND_MSG_BACK, level -1 ─→ dead-letter topic ─→ finished

    broker     failed ─ CONSUMER_SEND_MSG_BACK ─→ finished; the broker stores the message in the retry topic
                  └ not accepted ─ back-off ─→ listener

With `broker`, the broker counts the retries and moves the message to the dead-letter topic after the last
one. The message is delivered again through the retry topic, to any member of the group, Java members
included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from actors.host.supervisor import Supervisor
from cluster.client.config import PushConfig
from cluster.client.consumer.queue_work import QueueWork, Task
from cluster.client.consumer.send_back import DEAD_LETTER_LEVEL, SendBack
from store.logs import get_logger

log = get_logger(__name__)

Offer = Callable[[Task], None]
Settled = Callable[[QueueWork], None]


class Retries(Protocol):
    """Retries the tasks whose listener call failed. All calls are on the event loop."""

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Retry the messages of a task whose listener call failed.

        Args:
            task: The task. It is still one of the running tasks of its queue.
            delay_level: The level that the listener returned, or 0.
            offer: Puts the task into the ready list again.
        """


def make_retries(
    config: PushConfig, supervisor: Supervisor, send_back: SendBack, settled: Settled
) -> Retries:
    """Return the retries that `config.retry` selects.

    `settled` is called when a queue has room again, or when no task of a queue being released is running.
    """
    kind = RetryByBroker if config.retry == "broker" else RetryInPlace
    return kind(config, supervisor, send_back, settled)


class RetryInPlace:
    """Calls the listener again after a back-off. The offset of the task is not committed meanwhile."""

    def __init__(
        self, config: PushConfig, supervisor: Supervisor, send_back: SendBack, settled: Settled
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._send_back = send_back
        self._settled = settled

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Retry the messages after a back-off, or send them to the dead-letter topic after the last retry."""
        work = task.work
        if work.settle(task, succeeded=False):
            self._settled(work)
        if work.is_leaving:
            return
        if delay_level > 0:
            log.warning(
                "delay_level_ignored",
                group=self._config.group,
                delay_level=delay_level,
                remedy='set PushConfig(retry="broker")',
            )
        attempts, delay_s = count_attempt(task), backoff_s(task, self._config)
        if delay_level < 0 or attempts > self._config.max_reconsume_times:
            self._supervisor.start("dead letter", partial(self._send_to_dlq, task))
        else:
            asyncio.get_running_loop().call_later(delay_s, offer, task)

    async def _send_to_dlq(self, task: Task) -> None:
        work = task.work
        while not work.is_leaving:
            task.messages = await self._send_back.send(work.queue, task.messages, DEAD_LETTER_LEVEL)
            if not task.messages:
                work.finish(task)
                self._settled(work)
                return
            await asyncio.sleep(backoff_s(task, self._config))


class RetryByBroker:
    """Sends the messages back to their broker, which delivers them again after the delay of a level.

    A message that the broker does not accept, for example because it is unreachable, is retried in place.
    """

    def __init__(
        self, config: PushConfig, supervisor: Supervisor, send_back: SendBack, settled: Settled
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._send_back = send_back
        self._settled = settled

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Send the messages back. The release of their queue waits for the broker's responses."""
        if task.work.is_leaving:
            # The next owner of the queue gets the messages, as their offset is not committed.
            if task.work.settle(task, succeeded=False):
                self._settled(task.work)
            return
        task.is_returned = True
        self._supervisor.start("send back", partial(self._return, task, delay_level, offer))

    async def _return(self, task: Task, delay_level: int, offer: Offer) -> None:
        work = task.work
        unsent = await self._send_back.send(work.queue, task.messages, delay_level)
        if not unsent:
            work.finish(task)
        has_room = work.settle(task, succeeded=False)
        if has_room or not unsent:
            self._settled(work)
        if unsent and not work.is_leaving and not task.is_abandoned:
            task.messages = unsent
            count_attempt(task)
            asyncio.get_running_loop().call_later(backoff_s(task, self._config), offer, task)


def count_attempt(task: Task) -> int:
    """Add 1 to the `reconsume_times` of the messages and return the highest one."""
    for message in task.messages:
        message.reconsume_times += 1
    return max(message.reconsume_times for message in task.messages)


def backoff_s(task: Task, config: PushConfig) -> float:
    """Return the delay before the next attempt, in seconds."""
    attempts = max(message.reconsume_times for message in task.messages)
    delays_ms = config.retry_backoff_ms
    return delays_ms[min(attempts, len(delays_ms)) - 1] / 1000
