"""Receipts: the handles of received messages, and the renewal of those that a push consumer works on.

    handle   <receipt of POP, eight fields> <CommitLog offset>[ <lite topic>]

A push consumer sets no invisible time; the gateway renews its messages until they are acked, or for
`RENEWAL_MS_MAX`. They become visible again within `INVISIBLE_MS` if the gateway ends, at once if the client
says that it ends, and otherwise `CLIENT_TIMEOUT_MS` after its last heartbeat, or `STREAM_TIMEOUT_MS` after
the end of its Telemetry stream without a heartbeat since then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.gateway.callers import Caller
from actors.gateway.proto.definition_pb2 import Code
from actors.gateway.statuses import RpcFailed
from store.common.clock import Clock
from store.message.lite_topics import is_valid_name
from store.message.pop_records import Receipt
from store.store_errors import MessageInvalid

INVISIBLE_MS: Final = 60_000
"""Invisible time of a message that the gateway renews."""
RENEW_BEFORE_MS: Final = 20_000
RENEWAL_MS_MAX: Final = 3 * 3600 * 1000
RENEWED: Final = Bound(
    "gateway_renewals", 200_000, AtLimit.EVICT, "Messages that a gateway renews for push consumers."
)
CLIENT_TIMEOUT_MS: Final = 60_000
"""SDKs send a heartbeat every 10 s."""
STREAM_TIMEOUT_MS: Final = 15_000
_HANDLE_FIELDS: Final = 9


class Handle(NamedTuple):
    """A receipt, and where the message is in the CommitLog of its broker."""

    receipt: Receipt
    commit_log_offset: int
    lite_topic: str = ""
    """A client need not repeat it: Java's SDK 5.2.0 does not if the group is not FIFO."""

    @property
    def visible_ms(self) -> int:
        """The wall time at which the message becomes visible again."""
        return self.receipt.pop_ms + self.receipt.invisible_ms

    def encode(self) -> str:
        """Return the text that the client gets."""
        lite_topic = f" {self.lite_topic}" if self.lite_topic else ""
        return f"{self.receipt.encode()} {self.commit_log_offset}{lite_topic}"

    def of(self, lite_topic: str) -> Handle:
        """Return the handle with the lite topic that a request names; RocketMQ's proxy has it only there.

        Raises RpcFailed if the handle is one of another lite topic.
        """
        if lite_topic in ("", self.lite_topic):
            return self
        if self.lite_topic or not is_valid_name(lite_topic):
            raise RpcFailed(
                Code.INVALID_RECEIPT_HANDLE, f"receipt handle is not one of lite topic {lite_topic[:100]!r}"
            )
        return self._replace(lite_topic=lite_topic)

    @classmethod
    def decode(cls, text: str) -> Handle:
        """Return the parts of a handle. Raises RpcFailed if it is not valid."""
        fields = text.split(" ")
        lite_topic = fields.pop() if len(fields) == _HANDLE_FIELDS + 1 else ""
        if len(fields) == _HANDLE_FIELDS and len(text) <= 1024 and fields[-1].isdecimal():
            try:
                return cls(Receipt.decode(text), int(fields[-1])).of(lite_topic)
            except MessageInvalid:
                pass
        raise RpcFailed(
            Code.INVALID_RECEIPT_HANDLE, f"receipt handle {text[:100]!r} is not that of a received message"
        )


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class Renewal:
    """A message whose invisible time the gateway extends."""

    caller: Caller
    group: str
    topic: str
    handle: Handle
    until_ms: int
    """The wall time after which it is not renewed any more."""
    is_released: bool = False
    """True if the client has gone: the message becomes visible again."""
    changed: asyncio.Event = field(default_factory=_set_event)
    """Not set while a request to the broker changes the receipt."""


class ReceiptRenewals:
    """The messages that the push consumers of one gateway work on, by group and first handle."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewals = Newest[tuple[str, str], Renewal](RENEWED)
        self._seen: dict[tuple[str, str], int] = {}  # last signs of life of the clients, in ms

    def __len__(self) -> int:
        return len(self._renewals)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._renewals.use(),)

    def add(self, renewal: Renewal) -> None:
        """Renew a message from now on. Over the limit, the oldest ones are not renewed any more."""
        self._renewals[renewal.group, renewal.handle.encode()] = renewal
        self._seen[_owner(renewal.caller)] = self._clock.wall_ms()

    def seen(self, caller: Caller) -> None:
        """Note that a client is alive."""
        if _owner(caller) in self._seen:
            self._seen[_owner(caller)] = self._clock.wall_ms()

    def left(self, caller: Caller) -> None:
        """Note that a client has closed its Telemetry stream, maybe because it was killed."""
        owner, counts_as_ms = _owner(caller), self._clock.wall_ms() - CLIENT_TIMEOUT_MS + STREAM_TIMEOUT_MS
        if owner in self._seen:
            self._seen[owner] = min(self._seen[owner], counts_as_ms)

    async def take(self, caller: Caller, group: str, text: str, lite_topic: str = "") -> Handle:
        """Return the present handle for the one that the client has, and stop the renewal.

        The renewals of another user continue: the broker decides on the handle as it was given.
        """
        renewal = self._renewals.get((group, text))
        if renewal is None or renewal.caller.user != caller.user:
            return Handle.decode(text).of(lite_topic)
        renewal.handle.of(lite_topic)
        del self._renewals[group, text]
        await renewal.changed.wait()
        return renewal.handle

    def forget_batch(self, group: str, handle: Handle) -> None:
        """Stop the renewals of all messages that were received with a lite message, which is suspended."""
        batch = (group, handle.lite_topic, handle.receipt.broker_name, handle.receipt.pop_ms)
        for key, each in list(self._renewals.items()):
            receipt = each.handle.receipt
            if (each.group, each.handle.lite_topic, receipt.broker_name, receipt.pop_ms) == batch:
                del self._renewals[key]

    def due(self) -> list[Renewal]:
        """Return the messages that must be renewed or released now.

        Forget those that are renewed for too long, or whose client sends no heartbeats any more.
        """
        now_ms = self._clock.wall_ms()
        self._seen = {
            client: seen_ms for client, seen_ms in self._seen.items() if now_ms - seen_ms < CLIENT_TIMEOUT_MS
        }
        found = []
        for key, renewal in list(self._renewals.items()):
            visible_ms = renewal.handle.visible_ms
            if renewal.until_ms <= now_ms or visible_ms <= now_ms:
                del self._renewals[key]
            elif _owner(renewal.caller) not in self._seen:
                del self._renewals[key]
                renewal.is_released = True
                found.append(renewal)
            elif visible_ms - now_ms <= RENEW_BEFORE_MS:
                found.append(renewal)
        return found

    def forget_client(self, caller: Caller) -> None:
        """Note that a client has ended: its messages are due, to be released.

        The address may have changed, as clients reconnect; the user may not: client ids are no secret.
        """
        self._seen.pop(_owner(caller), None)


def _owner(caller: Caller) -> tuple[str, str]:
    return caller.client_id, caller.user
