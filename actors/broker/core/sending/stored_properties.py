"""Stored properties: the client's properties without transient ones, plus those that the broker adds.

For speed, these functions work on the encoded string and not on a dictionary: every send uses them.
"""

from __future__ import annotations

from actors.broker.broker_settings import BrokerSettings
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.message.message_id import UniqKeyGenerator
from store.message.properties import MessageConst, decode_properties
from store.message.record import MAX_PROPERTIES_BYTES

_UNIQ_KEY = f"{MessageConst.UNIQ_KEY}\x01"
_POP_CK = f"{MessageConst.POP_CK}\x01"
_TRANSIENT = MessageConst.TRANSIENT_PREFIX
_ADDED_NAMES = ("MSG_REGION\x01", "TRACE_ON\x01", "CLUSTER\x01")
_PREPARED = f"{MessageConst.TRANSACTION_PREPARED}\x01"
_DELAY = f"{MessageConst.DELAY}\x01"
_NOT_OF_CLIENTS = (_TRANSIENT, _POP_CK, *_ADDED_NAMES)
_OF_BATCH = frozenset({MessageConst.UNIQ_KEY, MessageConst.WAIT})
_END = 2
TIMERS = frozenset({MessageConst.TIMER_DELAY_SEC, MessageConst.TIMER_DELAY_MS, MessageConst.TIMER_DELIVER_MS})


class PropertyWriter:
    """Encodes the properties to store with the messages of one broker."""

    property_names = (MessageConst.POP_CK, "MSG_REGION", "TRACE_ON", "CLUSTER")
    """Names of the properties that `write` removes, besides those with TRANSIENT_PREFIX."""

    def __init__(self, settings: BrokerSettings, uniq_keys: UniqKeyGenerator) -> None:
        self._uniq_keys = uniq_keys
        trace_on = str(settings.trace_on).lower()
        self.added = (
            f"MSG_REGION\x01{settings.region_id}\x02TRACE_ON\x01{trace_on}\x02"
            f"CLUSTER\x01{settings.cluster_name}\x02"
        ).encode()
        """The encoded properties that every message gets: region, trace flag and cluster."""
        self.added_fields = {"MSG_REGION": settings.region_id, "TRACE_ON": trace_on}

    def next_uniq_key(self) -> str:
        """Generate a UNIQ_KEY for a message without one."""
        return self._uniq_keys.next()

    def write(self, text: str) -> tuple[bytes, str]:
        """Encode the properties to store; also return their UNIQ_KEY, which is generated if missing.

        Args:
            text: the properties that the client sent, in RocketMQ's encoding.

        Raises:
            Refused: the encoded properties exceed MAX_PROPERTIES_BYTES.
        """
        if _may_have_removable(text):
            text = without(text, _NOT_OF_CLIENTS)
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
                f"properties of {len(encoded):,} bytes (including those the broker adds) exceed the limit of "
                f"{MAX_PROPERTIES_BYTES:,}: move data to the body",
            )
        return encoded, uniq_key


def delay_level(properties: str) -> int:
    """Return the value of property DELAY in a property string; 0 if it has none, or an empty one.

    Raises:
        Refused: the level is not a number.
    """
    if "DELAY" not in properties:  # the common case
        return 0
    for pair in properties.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name == MessageConst.DELAY and value:
            if not value.lstrip("-").isdecimal():
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"property DELAY is {value!r}: it must be a delay level, 1 or higher",
                )
            if int(value) > 0:  # a delay level has precedence over a time, as in RocketMQ
                return int(value)
    return 0


def is_timed(properties: str) -> bool:
    """Return True if a property string sets a delivery time: TIMER_DELAY_SEC, _DELAY_MS or _DELIVER_MS."""
    if "TIMER_DEL" not in properties:  # the common case
        return False
    pairs = (pair.partition("\x01") for pair in properties.split("\x02"))
    return any(name in TIMERS and value for name, _, value in pairs)  # an empty value is absent


def _may_have_removable(text: str) -> bool:
    """Return True if a property may have to be removed; a forwarded message has those of another broker."""
    region, trace, cluster = _ADDED_NAMES
    return _TRANSIENT in text or _POP_CK in text or region in text or trace in text or cluster in text


def batch_properties(text: str) -> dict[str, str]:
    """Return the properties in the header of a batch request that each of its messages gets.

    Without those that belong to the batch as a whole (UNIQ_KEY, WAIT) and those that brokers write.

    Raises:
        Refused: the properties ask for a delay or a transaction.
    """
    properties = decode_properties(text.encode("utf-8", "replace"))
    if not properties.keys() - _OF_BATCH:  # what Java clients send
        return {}
    if delay_level(text) or is_timed(text) or is_prepared(text):
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the header of a batch must not have {MessageConst.DELAY}, TIMER_* or "
            f"{MessageConst.TRANSACTION_PREPARED}: send its messages one by one",
        )
    return {
        name: value
        for name, value in properties.items()
        if name not in _OF_BATCH and not f"{name}\x01".startswith(_NOT_OF_CLIENTS)
    }


def dead_letter_properties(text: str) -> str:
    """Return the property string with DELAY set to -1, as RocketMQ does for dead letters."""
    return f"{without(text, (_DELAY,))}{_DELAY}-1\x02"


def without(text: str, starts: tuple[str, ...]) -> str:
    """Return a property string without the pairs that begin with one of `starts`."""
    return "".join(f"{pair}\x02" for pair in text.split("\x02") if pair and not pair.startswith(starts))


def is_prepared(text: str) -> bool:
    """Return True if TRAN_MSG is true: RocketMQ takes the message for the half message of a transaction."""
    if f"\x02{_PREPARED}true\x02" in text:  # what clients send
        return True
    return _PREPARED in text and any(
        pair.startswith(_PREPARED) and pair[len(_PREPARED) :].lower() == "true" for pair in text.split("\x02")
    )


def uniq_key_of(properties: str) -> str:
    """Return the value of UNIQ_KEY in a property string; an empty string if it has none."""
    if properties.startswith(_UNIQ_KEY):
        start = len(_UNIQ_KEY)
    else:
        found = properties.find(f"\x02{_UNIQ_KEY}")
        if found < 0:
            return ""
        start = found + 1 + len(_UNIQ_KEY)
    end = properties.find("\x02", start)
    return properties[start:] if end < 0 else properties[start:end]
