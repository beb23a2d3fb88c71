"""Stored properties: what the client sent, without transient properties, plus those that brokers add.

Works on the encoded string, without a map, because every send passes here.
"""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.message.message_id import UniqKeyGenerator
from store.message.properties import MessageConst
from store.message.record import MAX_PROPERTIES_BYTES

_UNIQ_KEY = f"{MessageConst.UNIQ_KEY}\x01"
_POP_CK = f"{MessageConst.POP_CK}\x01"
_TRANSIENT = MessageConst.TRANSIENT_PREFIX
_ADDED_NAMES = ("MSG_REGION\x01", "TRACE_ON\x01", "CLUSTER\x01")
_PREPARED = f"{MessageConst.TRANSACTION_PREPARED}\x01"
_DELAY = f"{MessageConst.DELAY}\x01"
_END = 2
_TIMERS = frozenset(
    {MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS, MessageConst.TIMER_DELIVER_MS}
)


class PropertyWriter:
    """Writes the stored properties of one broker's messages."""

    def __init__(self, settings: BrokerSettings, uniq_keys: UniqKeyGenerator) -> None:
        self._uniq_keys = uniq_keys
        trace_on = str(settings.trace_on).lower()
        self.added = (
            f"MSG_REGION\x01{settings.region_id}\x02TRACE_ON\x01{trace_on}\x02"
            f"CLUSTER\x01{settings.cluster_name}\x02"
        ).encode()
        """The properties that every message gets, encoded."""
        self.added_fields = {"MSG_REGION": settings.region_id, "TRACE_ON": trace_on}

    def next_uniq_key(self) -> str:
        """Return a UNIQ_KEY for a message that came without one."""
        return self._uniq_keys.next()

    def write(self, text: str) -> tuple[bytes, str]:
        """Return the properties to store for those given, encoded, and their UNIQ_KEY.

        Raises:
            Refused: they are too long.
        """
        if _may_hold_dropped(text):
            text = _without(text, (_TRANSIENT, _POP_CK, *_ADDED_NAMES))
        uniq_key = uniq_key_of(text)
        encoded = text.encode("utf-8", "replace")
        if encoded and encoded[-1] != _END:
            encoded += b"\x02"
        if not uniq_key:
            uniq_key = self._uniq_keys.next()
            encoded += f"{_UNIQ_KEY}{uniq_key}\x02".encode()
        encoded += self.added
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"properties of {len(encoded):,} bytes (with what the broker adds) are over the limit of "
                f"{MAX_PROPERTIES_BYTES:,}: move data to the body",
            )
        return encoded, uniq_key


def delay_level(properties: str) -> int:
    """Return the DELAY level in a property string, 0 without one.

    Raises:
        Refused: the level is not a number, or the delay is one of RocketMQ's timer, which is not supported.
    """
    if "DELAY" not in properties and "DELIVER" not in properties:  # nearly always
        return 0
    is_timed = False
    for pair in properties.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name == MessageConst.DELAY:
            if not value.lstrip("-").isdecimal():
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL, f"property DELAY is {value!r}, not a level from 1 on"
                )
            if int(value) > 0:  # a level counts before a time, as in RocketMQ
                return int(value)
        if name in _TIMERS:
            is_timed = True
    if is_timed:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "this broker has no timer for properties TIMER_…: use a delay level (DELAY)",
        )
    return 0


def _may_hold_dropped(text: str) -> bool:
    """Return True if a pair may have to be dropped. A forwarded message has what another broker added."""
    region, trace, cluster = _ADDED_NAMES
    return _TRANSIENT in text or _POP_CK in text or region in text or trace in text or cluster in text


def of_dead_letter(text: str) -> str:
    """Return the properties of a dead letter: DELAY is -1, as in RocketMQ."""
    return f"{_without(text, (_DELAY,))}{_DELAY}-1\x02"


def _without(text: str, starts: tuple[str, ...]) -> str:
    return "".join(f"{pair}\x02" for pair in text.split("\x02") if pair and not pair.startswith(starts))


def is_prepared(text: str) -> bool:
    """Return True if the properties mark the first half of a transaction; RocketMQ decides by them."""
    return _PREPARED in text and any(
        pair.startswith(_PREPARED) and pair[len(_PREPARED) :].lower() == "true" for pair in text.split("\x02")
    )


def uniq_key_of(properties: str) -> str:
    """Return the value of UNIQ_KEY in a property string, empty without one."""
    if properties.startswith(_UNIQ_KEY):
        start = len(_UNIQ_KEY)
    else:
        found = properties.find(f"\x02{_UNIQ_KEY}")
        if found < 0:
            return ""
        start = found + 1 + len(_UNIQ_KEY)
    end = properties.find("\x02", start)
    return properties[start:] if end < 0 else properties[start:end]
