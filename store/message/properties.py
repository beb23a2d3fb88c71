"""Codec of message properties: a map in memory, a string on disk and on the wire.

See docs/store-format.md#properties.

    name 0x01 value 0x02  name 0x01 value 0x02 …

Writers append 0x02 to every pair, including the last. Readers accept a last pair without it, skip pairs with
an empty name or value, and use the last value if a name occurs twice.
"""

from collections.abc import Mapping, Sequence

from store.store_errors import MessageInvalid

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"


class MessageConst:
    """The names of the properties that RocketMQ's brokers and clients use."""

    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT = "WAIT"
    DELAY = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
    DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    MSG_REGION = "MSG_REGION"
    TRACE_ON = "TRACE_ON"
    UNIQ_KEY = "UNIQ_KEY"
    EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIME = "CONSUME_START_TIME"
    DUP_INFO = "DUP_INFO"
    CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
    TRANSACTION_ID = "__transactionId__"
    TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
    INSTANCE_ID = "INSTANCE_ID"
    CORRELATION_ID = "CORRELATION_ID"
    REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
    PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
    ARRIVE_TIME = "ARRIVE_TIME"
    TTL = "TTL"
    CLUSTER = "CLUSTER"
    MSG_TYPE = "MSG_TYPE"
    POP_CK = "POP_CK"
    POP_CK_OFFSET = "POP_CK_OFFSET"
    FIRST_POP_TIME = "1ST_POP_TIME"
    LITE_TOPIC = "__LITE_TOPIC"
    INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
    INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
    BORN_HOST = "__BORNHOST"
    BORN_TIMESTAMP = "BORN_TIMESTAMP"
    SHARDING_KEY = "__SHARDINGKEY"
    PRIORITY = "_SYS_MSG_PRIORITY_"
    TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
    TIMER_DELAY_MS = "TIMER_DELAY_MS"
    TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
    TIMER_OUT_MS = "TIMER_OUT_MS"
    TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
    TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
    TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
    TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
    TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
    CRC32 = "__CRC32#"
    TRANSIENT_PREFIX = "__RMQ.TRANSIENT."


KEY_SEPARATOR = " "


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode a map as a property string in UTF-8. Raises MessageInvalid as `properties_text` does."""
    return properties_text(properties).encode("utf-8", "replace")  # a lone surrogate becomes "?", as in Java


def properties_text(properties: Mapping[str, str]) -> str:
    """Return the property string of a map. Pairs with an empty name or value are left out.

    Raises:
        MessageInvalid: A name contains a separator, or a value contains 0x02: readers would see other
            properties.
        TypeError: A name or value is not a string.
    """
    text = ""
    for name, value in properties.items():
        if not name or not value:
            return _checked_text(properties)
        # Literals, not constants: this runs for every message sent. `+` refuses what is not a string.
        text += name + "\x01" + value + "\x02"
    # With exactly one separator of each kind per pair, no name or value can contain one.
    pairs = len(properties)
    if text.count("\x01") != pairs or text.count("\x02") != pairs:
        return _checked_text(properties)
    return text


def properties_texts(maps: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the property strings of several maps. Raises MessageInvalid as `properties_text` does.

    Faster than separate calls of `properties_text`, because the joined text is checked once.
    """
    texts: list[str] = []
    for properties in maps:
        text = ""
        for name, value in properties.items():
            text += name + "\x01" + value + "\x02"
        texts.append(text)
    pairs, whole = sum(map(len, maps)), "".join(texts)
    is_plain = whole.count("\x01") == pairs == whole.count("\x02") and not whole.startswith("\x01")
    if is_plain and "\x01\x02" not in whole and "\x02\x01" not in whole:  # no empty value, no empty name
        return texts
    return [properties_text(properties) for properties in maps]


def _checked_text(properties: Mapping[str, str]) -> str:
    """Return the property string of a map, checking each pair separately.

    The slow path of `properties_text` for maps with empty names, empty values or separator characters.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"property {name!r} is {value!r}: its name and value must be strings")
        if not name or not value:
            continue  # readers skip such pairs
        if NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name or PROPERTY_SEPARATOR in value:
            raise MessageInvalid(
                f"property {name!r} contains a separator character (0x01 or 0x02): remove it from the "
                "name or value"
            )
        parts.append(f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}")
    return "".join(parts)


def decode_properties(encoded: bytes) -> dict[str, str]:
    """Return the map of a property string. Malformed pairs are skipped, invalid UTF-8 becomes U+FFFD."""
    pairs = encoded.decode("utf-8", "replace").split(PROPERTY_SEPARATOR)
    if not pairs[-1]:
        pairs.pop()
    try:
        properties = dict([pair.split(NAME_VALUE_SEPARATOR, 1) for pair in pairs])
    except ValueError:  # a pair without a separator
        return _well_formed(pairs)
    return _well_formed(pairs) if "" in properties or "" in properties.values() else properties


def _well_formed(pairs: Sequence[str]) -> dict[str, str]:
    """Return the properties of those pairs that have a name and a value."""
    properties: dict[str, str] = {}
    for pair in pairs:
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties
