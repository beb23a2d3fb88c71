"""PopRequests: the requests POP_MESSAGE, PEEK_MESSAGE, NOTIFICATION and POLLING_INFO.

pop ──► messages ─────────────────────────────────────────────────► response with their claims
  └───► none ──► held ──arrival, retry, end of a claim──► pop again
                   └────pollTime is over────────────────► POLLING_TIMEOUT
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.group.popping_groups import PoppingGroups
from actors.broker.core.group.subscriptions import compile_filter, compile_in_steps, takes_long
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.reading.queue_reader import QueueReader
from actors.broker.features.pop.claims import ClaimQueue, check_invisible_ms
from actors.broker.features.pop.pop_reader import FoundMessages, PopReader, PopSource
from actors.broker.features.pop.waiting import WaitingPop, WaitingPops
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.bodies.pops import (
    INIT_MAX,
    NotificationHeader,
    NotificationResponse,
    PeekMessageHeader,
    PollingInfoHeader,
    PollingInfoResponse,
    PopMessageHeader,
    PopResponse,
)
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, each_of, on_group, on_topic
from store.common.clock import Clock
from store.message.pop_records import MESSAGES_MAX, pop_retry_topic
from store.message.validate import MAX_RETRY_TOPIC_CHARS
from store.message_store import GetMessageStatus
from store.reading.message_filter import MATCH_ALL


class PopRequests:
    """Request handler for pops, and for questions about messages to pop."""

    def __init__(
        self,
        settings: BrokerSettings,
        reader: QueueReader,
        reads: Reads,
        topics: Topics,
        pop_reader: PopReader,
        waits: WaitingPops,
        popping_groups: PoppingGroups,
        clock: Clock,
    ) -> None:
        """Create the handler.

        Args:
            settings: the limits of waits, and whether the timer is enabled.
            reader: checks the groups.
            reads: reads without waiting for the disk on the loop.
            topics: the broker's topics.
            pop_reader: reads and claims messages.
            waits: the waiting requests.
            popping_groups: notes which groups pop.
            clock: provides the time of a peek.
        """
        self._settings = settings
        self._reader = reader
        self._reads = reads
        self._topics = topics
        self._pop_reader = pop_reader
        self._waits = waits
        self._groups = popping_groups
        self._clock = clock
        self._is_serving = False

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode
        sub = each_of(on_group(Action.SUB), on_topic(Action.SUB))
        get = each_of(on_group(Action.GET), on_topic(Action.GET))
        row = partial(RequestRow, needs_services=True)
        return (
            row(code.POP_MESSAGE, self.pop, PopMessageHeader, sub, Cost.PULL),
            row(code.PEEK_MESSAGE, self.peek, PeekMessageHeader, sub, Cost.PULL),
            row(code.NOTIFICATION, self.notify, NotificationHeader, sub, Cost.PULL),
            row(code.POLLING_INFO, self.polling_info, PollingInfoHeader, get),
        )

    async def start(self) -> None:
        """Accept pops from now on."""
        self._is_serving = True

    async def stop(self) -> None:
        """Refuse pops from now on: their claims would be lost."""
        self._is_serving = False

    def pop(self, context: RequestContext) -> None:
        """Handle POP_MESSAGE: respond with messages and their claims, or hold the request.

        Raises Refused if a field is out of range, the filter is invalid, the topic or queue does not exist or
        is not readable, the group may not consume, or the timer is disabled.
        """
        header: PopMessageHeader = context.header
        if takes_long(header.exp, header.exp_type):
            context.work(self._compile(context))
            return
        self._check(header.consumer_group, header.topic, header.max_msg_nums)
        check_invisible_ms(header.invisible_time, self._settings)
        self._groups.popped(header.topic, header.consumer_group)
        request = WaitingPop(
            context,
            self,
            self._waits,
            header.topic,
            header.consumer_group,
            max(header.queue_id, -1),
            compile_filter(header.exp, header.exp_type),
            max_messages=header.max_msg_nums,
            invisible_ms=header.invisible_time,
            wait_ms=self._wait_ms(header.poll_time),
            starts_at_end=header.init_mode == INIT_MAX,
            order=header.order,
            attempt_id=header.attempt_id,
            is_pop=True,
        )
        self._serve(request)

    def peek(self, context: RequestContext) -> None:
        """Handle PEEK_MESSAGE: respond with the messages that a pop would return, without claiming them."""
        header: PeekMessageHeader = context.header
        group, topic = header.consumer_group, header.topic
        self._check(group, topic, header.max_msg_nums)
        request = WaitingPop(
            context, self, self._waits, topic, group, max(header.queue_id, -1), MATCH_ALL,
            max_messages=header.max_msg_nums,
        )  # fmt: skip
        sources = self._pop_reader.sources(request)
        self._reads.serve(context, lambda: self._pop_reader.read(request, sources), self._peeked)

    def notify(self, context: RequestContext) -> RemotingCommand | None:
        """Handle NOTIFICATION: respond when there is a message to pop, or when the wait time is over."""
        header: NotificationHeader = context.header
        self._check(header.consumer_group, header.topic, 1)
        request = WaitingPop(
            context,
            self,
            self._waits,
            header.topic,
            header.consumer_group,
            max(header.queue_id, -1),
            MATCH_ALL,
            wait_ms=self._wait_ms(header.poll_time),
            order=header.order,
            attempt_id=header.attempt_id,
            is_notification=True,
        )
        return self._notification(request)

    def polling_info(self, context: RequestContext) -> RemotingCommand:
        """Handle POLLING_INFO: return how many pops of a group wait on a topic or queue."""
        header: PollingInfoHeader = context.header
        self._topics.for_pulling(header.topic)
        waiting = self._waits.count(header.topic, header.consumer_group, header.queue_id)
        return RemotingCommand.response(ext=PollingInfoResponse(waiting).to_ext())

    def resume(self, request: WaitingPop) -> None:
        """Handle a request again that was held. Its topic may have been deleted meanwhile."""
        connection = request.context.connection
        if connection.is_closed:
            return
        if connection.over_high_water:
            # The client does not read its responses: serve it when it does, and another one now.
            connection.when_drained(lambda _: self.resume(request))
            self._waits.wake(ClaimQueue(request.topic, request.group, -1))
            return
        try:
            if request.is_notification:
                response = self._notification(request)
                if response is not None:
                    request.context.reply(response)
                return
            self._reads.admit(connection)
            self._serve(request)
        except Exception as error:  # noqa: BLE001 - the error goes to this client, and others continue
            request.context.refuse(error)

    def _compile(self, context: RequestContext) -> Steps:
        header: PopMessageHeader = context.header
        yield from compile_in_steps(header.exp, header.exp_type)
        self.pop(context)
        return None

    def _check(self, group: str, topic: str, messages: int) -> None:
        if not self._is_serving:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker does not serve pops at present")
        if not 0 < messages <= MESSAGES_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums is {messages}: it must be 1 to {MESSAGES_MAX}"
            )
        if not self._settings.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "pop is not supported, because timerWheelEnable is false: claims need the timer, enable it",
            )
        self._topics.for_pulling(topic)
        self._reader.check_group(group, topic)
        if len(pop_retry_topic(group, topic)) > MAX_RETRY_TOPIC_CHARS:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the names of group {group[:40]!r} and topic {topic[:40]!r} are too long for the name of "
                f"their retry topic ({MAX_RETRY_TOPIC_CHARS} characters)",
            )

    def _wait_ms(self, poll_ms: int) -> int:
        return min(max(poll_ms, 0), self._settings.max_hold_ms)

    def _serve(self, request: WaitingPop) -> None:
        sources = self._pop_reader.sources(request)
        if self._reads.catch_up() or self._pop_reader.can_read(sources):
            self._read(request, sources)
        else:
            self._reads.wait_for_dispatch(request.context, lambda _: self._read(request, sources))

    def _read(self, request: WaitingPop, sources: list[PopSource]) -> None:
        self._reads.serve(
            request.context,
            lambda: self._pop_reader.read(request, sources),
            partial(self._respond, request),
        )

    def _respond(self, request: WaitingPop, found: list[FoundMessages]) -> RemotingCommand | None:
        """Claim what was found and respond; hold the request if that is nothing."""
        if not self._is_serving:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is shutting down")
        response = self._pop_reader.claim(request, found)
        if response is not None:
            if int(response.ext["restNum"]) > 0:  # another waiting pop may have the rest now
                self._waits.wake(ClaimQueue(request.topic, request.group, -1))
            return response
        if any(each.result.next_begin_offset < each.result.max_offset for each in found):
            request.context.spawn(self._continue(request))  # the filter has rejected all messages so far
            return None
        if self._waits.hold(request):
            return None
        code = ResponseCode.POLLING_TIMEOUT
        remark: str = GetMessageStatus.NO_MESSAGE_IN_QUEUE.name
        if not self._waits.is_over(request):
            code, remark = ResponseCode.POLLING_FULL, "too many requests are held: raise max_held_pulls"
        return RemotingCommand.response(code, remark, self._pop_reader.nothing(request).to_ext())

    async def _continue(self, request: WaitingPop) -> None:
        await asyncio.sleep(0)
        self._serve(request)

    def _peeked(self, found: list[FoundMessages]) -> RemotingCommand:
        slices = [part for each in found for part in each.result.slices]
        rest = sum(max(each.result.max_offset - each.result.next_begin_offset, 0) for each in found)
        ext = PopResponse(self._clock.wall_ms(), 0, 0, rest).to_ext()
        if not slices:
            return RemotingCommand.response(
                ResponseCode.PULL_NOT_FOUND, GetMessageStatus.NO_MESSAGE_IN_QUEUE.name, ext
            )
        return RemotingCommand.response(0, GetMessageStatus.FOUND.name, ext, parts=slices)

    def _notification(self, request: WaitingPop) -> RemotingCommand | None:
        """Return the response; None if the request is held."""
        self._reads.catch_up()
        has_message = self._pop_reader.has_message(request)
        if not has_message and self._waits.hold(request):
            return None
        is_full = not has_message and not self._waits.is_over(request)
        return RemotingCommand.response(ext=NotificationResponse(has_message, is_full).to_ext())
