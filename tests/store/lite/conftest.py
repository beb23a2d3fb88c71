"""Stores with lite messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from store.lite.lite_index import LiteIndex, lmq_name
from store.message.properties import encode_properties
from store.message.record import decode_record
from store.message_store import MessageStore


@dataclass
class LiteStore:
    """A store with a lite index."""

    store: MessageStore
    index: LiteIndex
    drain: Callable[[MessageStore], None]
    draft: Callable[..., Any]

    def send(self, name: str, *bodies: bytes, topic: str = "LiteT") -> None:
        """Append messages to a lite topic, as a broker does."""
        for body in bodies:
            offset = self.index.next_offset(topic, name)
            self.put(name, offset, body, topic=topic)
            self.index.appended(topic, name, offset)

    def put(self, name: str, offset: object, body: bytes, topic: str = "LiteT", parent: str = "") -> None:
        """Append a record with any offset."""
        properties = {
            "__LITE_TOPIC": name,
            "INNER_MULTI_DISPATCH": lmq_name(parent or topic, name),
            "INNER_MULTI_QUEUE_OFFSET": str(offset),
        }
        draft = self.draft(body, topic=topic)
        draft.properties = encode_properties(properties)
        self.store.append(draft)

    def bodies(self, name: str, offset: int = 0, count: int = 100, topic: str = "LiteT") -> list[bytes]:
        """Return the bodies of a lite topic."""
        found = self.index.read(topic, name, offset, count)
        records = [decode_record(self.store.record_at(each.physical_offset)) for each in found]
        return [each.body for each in records]


@pytest.fixture
def lite_stores(stores: Any, draft: Any, drain: Any) -> Callable[..., LiteStore]:
    """Give a function that opens the store of a name with its lite index."""

    def open_store(name: str = "store", **settings: Any) -> LiteStore:
        index = LiteIndex(stores.directory / name, units_per_file=16)
        return LiteStore(stores.open(name, sinks=[index], **settings), index, drain, draft)

    return open_store
