"""LiteCore: the implementation of the lite consumer behind the blocking and the async API.

    subscribe ──PARTIAL_ADD──► each broker of the topic, which keeps it in memory
    receive   ──► a pop waits at each broker ──► messages that wait here for the next `receive`

A broker that has restarted, or another leader, does not know this client. All subscriptions are sent again
over each new connection, after each failure, if a broker says that it does not know the client, and every
`SYNC_MS`. A pop whose response was lost is repeated with its attempt id and gets the same messages.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.lite import (
    PopLiteHeader,
    SyncAction,
    SyncEntry,
    UnsubscribeLiteHeader,
    encode_sync,
    popped_lite_messages,
)
from actors.wire.bodies.pops import AckMessageHeader, ChangeInvisibleTimeHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from cluster.client.errors import BrokerRefused, ClientClosed, ClientError, ConfigInvalid, ReceiptExpired
from cluster.client.message_selector import MessageSelector
from cluster.client.pop.pop_config import LiteConfig
from cluster.client.pop.pop_member import LONG_POLL_MS, PAUSE_MS, PopMember, receipt_of
from store.common.clock import Clock
from store.common.logs import get_logger
from store.message.message import MessageExt

_log = get_logger(__name__)

SYNC_MS: Final = 30_000
"""How often all subscriptions are sent again. A broker forgets a client after 3 minutes."""
_ALL: Final = MessageSelector.by_tag("*")

Option = tuple[str, int] | None
"""Where a group begins to read a lite topic, as type and value of the request; None: where it was."""


class _Broker:
    """What the client knows of one broker of the topic."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        """The connection over which all subscriptions were sent; over a new one, they may be unknown."""
        self.late: dict[str, Option] = {}
        """Lite topics whose subscription the broker has not accepted yet."""
        self.lock = asyncio.Lock()
        self.pop: asyncio.Task[None] | None = None
        self.attempt_id = ""
        self.error: ClientError | None = None


class LiteCore(PopMember):
    """One lite consumer. Create it on the event loop that runs it."""

    def __init__(
        self, config: LiteConfig, on_lost: Callable[[str], object] | None = None, clock: Clock | None = None
    ) -> None:
        table = RequestTable()
        table.add(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self._notified, UnsubscribeLiteHeader)
        super().__init__(config, "earliest", clock, table)
        self.config = config
        self.subscribed: set[str] = set()
        self._topic = self._names.wrap(config.topic)
        self._on_lost = on_lost
        self._adding: list[frozenset[str]] = []
        self._known: dict[str, _Broker] = {}
        self._ready: deque[tuple[int, MessageExt]] = deque()
        """Received messages, each with the time at which it is visible to others again."""
        self._is_leaving = False
        self.instance.supervisor.every("lite-subscriptions", lambda: SYNC_MS, self._renew)

    async def subscribe(self, names: frozenset[str], option: Option) -> None:
        """Subscribe lite topics at all brokers.

        Raises ClientError if a broker refuses it, or all fail; then nothing has changed.
        """
        new = names - self.subscribed
        self.subscribed |= names
        self._adding.append(names)
        try:
            await self._add_all(names, option)
        except BaseException:
            self._forget(new)
            for broker in self._known.values():
                broker.connection = None  # the next synchronization corrects what a broker has accepted
            raise
        finally:
            self._adding.remove(names)

    async def unsubscribe(self, names: Collection[str]) -> None:
        """Unsubscribe lite topics. Brokers that cannot be reached learn it later."""
        self._forget(names)
        await self._tell_all(SyncAction.PARTIAL_REMOVE, sorted(names))
        await self._release(names)

    async def receive(self, max_messages: int, timeout_ms: float) -> list[MessageExt]:
        """Return up to `max_messages` messages; an empty list if none arrive within `timeout_ms`.

        Raises ClientError if no broker of the topic could be asked until then, or all refuse it.
        """
        deadline_ms = self.instance.now_ms() + timeout_ms
        while not (found := self._take(max_messages)):
            left_ms = max(int(deadline_ms - self.instance.now_ms()), 0)
            try:
                members = await self._members()
            except ClientError as error:
                if not error.retriable or not left_ms:
                    raise
                await asyncio.sleep(min(left_ms, PAUSE_MS) / 1000)
                continue
            held = {each.pop for each in self._known.values()}
            brokers = [self._pop_at(*each, max_messages, left_ms) for each in members]
            pops = {each.pop for each in brokers if each.pop is not None}
            if left_ms:
                await asyncio.wait(pops, timeout=left_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            elif started := pops - held:
                await asyncio.wait(started)
            errors = [each.error for each in brokers if each.error is not None]
            if len(errors) == len(brokers) and not self._ready:
                refusal = next((each for each in errors if not each.retriable), None)
                if refusal is not None or not left_ms:
                    raise refusal or errors[-1]
            if not left_ms:
                return self._take(max_messages)
        return found

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """Acknowledge messages. Raises ConfigInvalid, ClientError."""
        acks: list[tuple[str, AckMessageHeader]] = []
        for each in messages:
            name, receipt = _name_of(each), receipt_of(each)
            header = AckMessageHeader(
                self._group, self._topic, 0, receipt.encode(), receipt.offset, lite_topic=name
            )
            acks.append((receipt.broker_name, header))

        async def send(broker_name: str, header: AckMessageHeader) -> None:
            command = RemotingCommand(RequestCode.ACK_MESSAGE, header.to_ext())
            await self.instance.invoke(await self._address(self._topic, broker_name), command)

        results = await asyncio.gather(*(send(*each) for each in acks), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    async def change(self, message: MessageExt, invisible_ms: int, *, suspends: bool = False) -> None:
        """Make a message, or all that are in flight of its lite topic, visible again after another time.

        Raises ConfigInvalid, ReceiptExpired, ClientError.
        """
        name, receipt = _name_of(message), receipt_of(message)
        header = ChangeInvisibleTimeHeader(
            self._group,
            self._topic,
            0,
            receipt.encode(),
            receipt.offset,
            invisible_ms,
            lite_topic=name,
            suspend=suspends,
        )
        changed = await self._change(self._topic, receipt.broker_name, header)
        if changed.pop_time is None:
            raise ReceiptExpired(
                ResponseCode.NO_MESSAGE,
                f"the message at offset {receipt.offset} of lite topic {name!r} is not in flight any more: "
                "it was acknowledged, or is visible to others again",
            )

    async def _leave(self) -> None:
        """Unsubscribe everything, and release messages that `receive` has not returned."""
        self._is_leaving = True
        await self._tell_all(SyncAction.COMPLETE_REMOVE)
        await self._release(None)
        await super()._leave()

    async def _members(self) -> list[tuple[str, str]]:
        """Return (name, address) of the brokers, which know this client as a member of its group."""
        if self._is_leaving:
            raise ClientClosed("the lite consumer is closed: create a new one")
        brokers = await self._brokers(self._topic)
        await self._subscribe(self._topic, _ALL)
        for name, _ in brokers:
            self._known.setdefault(name, _Broker())
        return brokers

    async def _add_all(self, names: frozenset[str], option: Option) -> None:
        brokers = await self._members()
        adds = (self._add(name, address, names, option) for name, address in brokers)
        results = await asyncio.gather(*adds, return_exceptions=True)
        errors = [each for each in results if each is not None]
        refusals = [each for each in errors if not isinstance(each, ClientError) or not each.retriable]
        if refusals or len(errors) == len(brokers):
            raise (refusals or errors)[0]

    async def _add(self, name: str, address: str, names: frozenset[str], option: Option) -> None:
        broker = self._known[name]
        try:
            async with broker.lock:
                await self._send(address, SyncAction.PARTIAL_ADD, sorted(names), option)
        except ClientError as error:
            if error.retriable:
                broker.late |= dict.fromkeys(names, option)
            raise

    async def _sync(self, broker: _Broker, address: str) -> None:
        """Send a broker what it does not know of the subscriptions. Raises ClientError."""
        async with broker.lock:
            while broker.late:
                option = next(iter(broker.late.values()))
                names = [name for name, each in broker.late.items() if each == option]
                try:
                    await self._send(address, SyncAction.PARTIAL_ADD, names, option)
                except ClientError as error:
                    if error.retriable:
                        raise
                    _log.warning("lite_subscription_refused", names=len(names), error=str(error))
                    for name in names:
                        self._lose(name)
                for name in names:
                    broker.late.pop(name, None)
            connection = self.instance.remoting.connection
            if broker.connection is None or broker.connection is not connection(address):
                await self._send(address, SyncAction.COMPLETE_ADD, sorted(self.subscribed))
                broker.connection = connection(address)

    async def _renew(self) -> None:
        """Send all subscriptions again, which keeps them alive."""
        route = self.instance.routes.peek(self._topic)
        for name, address in (route.masters() if route is not None else {}).items():
            broker = self._known.get(name)
            if broker is None or self._is_leaving:
                continue
            broker.connection = None
            try:
                await self._sync(broker, address)
            except ClientError as error:
                _log.info("lite_subscriptions_not_renewed", broker=name, error=str(error))

    async def _send(
        self, address: str, action: SyncAction, names: Sequence[str] = (), option: Option = None
    ) -> None:
        entry = SyncEntry(action, self.instance.client_id, self._group, self._topic, names, option)
        command = RemotingCommand(RequestCode.LITE_SUBSCRIPTION_CTL, body=encode_sync(entry))
        await self.instance.invoke(address, command)

    async def _tell_all(self, action: SyncAction, names: Sequence[str] = ()) -> None:
        """Remove subscriptions at all brokers; one that fails gets the rest before the next pop there."""
        route = self.instance.routes.peek(self._topic)

        async def tell(name: str, address: str) -> None:
            broker = self._known[name]
            try:
                async with broker.lock:
                    await self._send(address, action, names)
            except ClientError as error:
                broker.connection = None
                _log.info("lite_topics_not_unsubscribed", broker=name, error=str(error))

        masters = route.masters() if route is not None else {}
        await asyncio.gather(*(tell(*each) for each in masters.items() if each[0] in self._known))

    def _pop_at(self, name: str, address: str, max_messages: int, wait_ms: int) -> _Broker:
        """Return a broker at which a pop waits; start one unless there is one."""
        broker = self._known[name]
        if broker.pop is None or broker.pop.done():
            pop = self._pop(name, address, max_messages, min(wait_ms, LONG_POLL_MS))
            broker.pop = self.instance.spawn(pop, "lite-pop")
        return broker

    async def _pop(self, name: str, address: str, max_messages: int, wait_ms: int) -> None:
        broker = self._known[name]
        try:
            try:
                messages = await self._pop_once(name, address, max_messages, wait_ms)
            except BrokerRefused as error:
                if error.code != ResponseCode.SUBSCRIPTION_NOT_EXIST:
                    raise
                broker.connection = None  # it has forgotten this client
                messages = await self._pop_once(name, address, max_messages, wait_ms)
        except ClientClosed:
            return
        except ClientError as error:
            _log.warning("pop_failed", broker=name, topic=self._topic, error=str(error))
            broker.connection, broker.error = None, error
            await self.instance.routes.refresh_or_keep(self._topic)
            await asyncio.sleep(min(wait_ms, PAUSE_MS) / 1000)
            return
        broker.error, broker.attempt_id = None, ""
        self._names.unwrap_messages(messages)
        expiry_ms = self.instance.now_ms() + self.config.invisible_ms
        self._ready.extend((expiry_ms, each) for each in messages)

    async def _pop_once(self, name: str, address: str, max_messages: int, wait_ms: int) -> list[MessageExt]:
        broker = self._known[name]
        await self._sync(broker, address)
        broker.attempt_id = broker.attempt_id or secrets.token_hex(8)
        header = PopLiteHeader(
            self.instance.client_id, self._group, self._topic, max_messages, self.config.invisible_ms,
            wait_ms, attempt_id=broker.attempt_id, needs_subscription=True,
        )  # fmt: skip
        command = RemotingCommand(RequestCode.POP_LITE_MESSAGE, header.to_ext())
        return await self._popped(name, address, command, wait_ms, popped_lite_messages)

    def _take(self, max_messages: int) -> list[MessageExt]:
        found: list[MessageExt] = []
        while self._ready and len(found) < max_messages:
            expiry_ms, message = self._ready.popleft()
            if expiry_ms > self.instance.now_ms():
                found.append(message)
        return found

    async def _release(self, names: Collection[str] | None) -> None:
        """Make waiting messages of some lite topics, or of all, visible to others now."""
        given = [each for _, each in self._ready if names is None or each.lite_topic in names]
        self._ready = deque(each for each in self._ready if each[1] not in given)
        first = {each.lite_topic: each for each in reversed(given)}.values()
        changes = [self.change(each, 1, suspends=True) for each in first]
        for error in filter(None, await asyncio.gather(*changes, return_exceptions=True)):
            _log.info("lite_messages_not_released", error=str(error))  # they are visible in time

    def _notified(self, context: RequestContext) -> None:
        """Handle NOTIFY_UNSUBSCRIBE_LITE: another client of an exclusive group has a lite topic."""
        header: UnsubscribeLiteHeader = context.header
        is_ours = (header.consumer_group, header.client_id) == (self._group, self.instance.client_id)
        if is_ours and not any(header.lite_topic in each for each in self._adding):
            self._lose(header.lite_topic)

    def _lose(self, name: str) -> None:
        if name in self.subscribed:
            self._forget((name,))
            self.instance.spawn(self._release((name,)), "lite-release")
            if self._on_lost is not None:
                self._on_lost(name)

    def _forget(self, names: Iterable[str]) -> None:
        self.subscribed.difference_update(names)
        for broker in self._known.values():
            for name in names:
                broker.late.pop(name, None)


def _name_of(message: MessageExt) -> str:
    name = message.lite_topic if isinstance(message, MessageExt) else None
    if name is None:
        raise ConfigInvalid(f"{message!r:.100} was not received by a LiteConsumer: give the received message")
    return name
