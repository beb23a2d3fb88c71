"""Redirects a record to the queue of a delay level, until `actors.broker.features.delay` delivers it.

topic T, queue 3, level 2  →  SCHEDULE_TOPIC_XXXX, queue 1, REAL_TOPIC = T, REAL_QID = 3
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from actors.broker.core.metadata.topics import SCHEDULE_TOPIC
from store.message.properties import MessageConst
from store.message.record import RecordDraft

_DELAY_PAIR: Final = re.compile(r"((?:^|\x02)DELAY\x01)[^\x02]*")


def delay_draft(record: RecordDraft, properties: str, level: int, delays_ms: Sequence[int]) -> str:
    """Change the topic and queue of a record to those of a delay level.

    Args:
        record: the record to change.
        properties: its properties, encoded.
        level: 1 or higher; a level above the highest one becomes the highest.
        delays_ms: the delay of each level, from level 0 on (`StoreSettings.delay_levels_ms`).

    Returns:
        The properties with the topic and queue to deliver to (REAL_TOPIC, REAL_QID).
    """
    highest = len(delays_ms) - 1
    if level > highest:
        level, properties = highest, _DELAY_PAIR.sub(rf"\g<1>{highest}", properties)
    if properties and not properties.endswith("\x02"):
        properties += "\x02"
    properties += (
        f"{MessageConst.REAL_TOPIC}\x01{record.topic}\x02"
        f"{MessageConst.REAL_QUEUE_ID}\x01{record.queue_id}\x02"
    )
    record.topic, record.queue_id = SCHEDULE_TOPIC, level - 1
    return properties
