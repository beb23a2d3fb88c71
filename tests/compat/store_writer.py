"""Writes a store with RayMQ's MessageStore, in a process that a test can kill, and prints the stored
messages.

    python -m tests.compat.store_writer ROOT --messages COUNT [--forever]

prints one line of JSON for each appended message, then WRITTEN. With --forever it continues until it is
killed. The file sizes are those of `STORE_CONF`, so that a few thousand messages fill several files of each
kind.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from store.common.clock import SystemClock
from store.message.batch import encode_batch
from store.message.compression import compress
from store.message.hosts import Host
from store.message.message import Message
from store.message.message_id import UniqKeyGenerator
from store.message.properties import encode_properties
from store.message.record import RecordDraft, encode_record
from store.message.runs import Runs
from store.message_store import MessageStore
from store.ownership.identity import StoreIdentity
from store.store_settings import StoreSettings

STORE_CONF = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "maxMessageSize": "65536",
}
IDENTITY = StoreIdentity("DefaultCluster", "broker-a")
STORE_HOST = Host("127.0.0.1", 10911)
BORN_HOSTS = (Host("127.0.0.1", 40001), Host("10.1.2.3", 65535), Host("2001:db8::17", 40002))
TOPICS = ("FromOurs", "FromOurs", "FromOurs", "Ours-Other", "%RETRY%ours")
QUEUES = 3
TAGS = ("TagA", "TagB", "метка", None)
BATCH_EVERY = 40
TICK_EVERY = 50

Facts = dict[str, object]


def store_settings() -> StoreSettings:
    return StoreSettings.model_validate({"flush": "async", **STORE_CONF})


def open_store(root: Path) -> MessageStore:
    return MessageStore.open(root, store_settings(), IDENTITY, SystemClock(), store_host=STORE_HOST)


class Writer:
    """Appends messages of every kind that a broker stores, one after another."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._clock = SystemClock()
        self._random = random.Random(17)
        self._uniq_keys = UniqKeyGenerator("127.0.0.1", 4711, self._clock, self._random)

    def append(self, number: int) -> Iterator[Facts]:
        """Append a message or a batch; yield the expected fields of each message."""
        draft = self._draft(number)
        messages = [self._message(number, draft.topic)]
        if number % BATCH_EVERY == 1:
            messages += [self._message(number * 1000 + more, draft.topic) for more in range(7)]
            draft.sys_flag = 0
            result = self._store.append_batch(draft, encode_batch(messages))
        elif number % BATCH_EVERY == 2:
            messages += [self._message(number * 1000 + more, draft.topic) for more in range(7)]
            records = bytearray(b"".join(self._record(draft, message) for message in messages))
            runs = Runs([draft.queue_id], [len(messages)], [len(records)], memoryview(records))
            result = self._store.append_runs(draft.topic, runs, draft.born_host)
        else:
            draft.properties, draft.flag = encode_properties(messages[0].properties), messages[0].flag
            draft.body = messages[0].body
            if number % 7 == 0:
                draft.body, draft.sys_flag = compress(b"so long " * 100)
                messages[0].body = bytes(draft.body)
            result = self._store.append(draft)
        for place, message in enumerate(messages):
            yield {
                "topic": draft.topic,
                "queueId": draft.queue_id,
                "queueOffset": result.queue_offset + place,
                "uniqKey": message.uniq_key,
                "tags": message.tags,
                "keys": message.keys,
                "properties": message.properties,
                "flag": message.flag,
                "bornTimestamp": draft.born_timestamp,
                "reconsumeTimes": draft.reconsume_times,
                "bodyLen": len(message.body),
                "bodySha1": hashlib.sha1(message.body).hexdigest(),
            }

    def _draft(self, number: int) -> RecordDraft:
        return RecordDraft(
            topic=TOPICS[number % len(TOPICS)],
            queue_id=0 if number % 2 else number % QUEUES,
            body=b"",
            born_timestamp=self._clock.wall_ms() - number % 100,
            born_host=BORN_HOSTS[number % len(BORN_HOSTS)].packed,
            reconsume_times=number % 3,
        )

    def _message(self, number: int, topic: str) -> Message:
        properties = {
            "UNIQ_KEY": self._uniq_keys.next(),
            "CLUSTER": IDENTITY.cluster,
            "colour": "синий",
            "n": str(number),
        }
        return Message(
            topic,
            self._random.randbytes(self._random.choice((0, 1, 128, 700, 2500))),
            tags=TAGS[number % len(TAGS)],
            keys=[f"k{number}", f"Ключ{number // 30}"],
            properties=properties,
            flag=number % 1000,
        )

    @staticmethod
    def _record(draft: RecordDraft, message: Message) -> bytes:
        """Return a record as a client encodes it; the broker fills in offsets, hosts and timestamps."""
        built = RecordDraft(
            topic=draft.topic,
            queue_id=draft.queue_id,
            body=message.body,
            properties=encode_properties(message.properties),
            flag=message.flag,
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
            reconsume_times=draft.reconsume_times,
        )
        return encode_record(built, 0, 0, 0, STORE_HOST.packed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--forever", action="store_true")
    options = parser.parse_args()
    store = open_store(options.root)
    writer = Writer(store)
    for number in itertools.count():
        facts = list(writer.append(number))
        if number % TICK_EVERY == 0:
            store.advance()
        sys.stdout.write("".join(json.dumps(one) + "\n" for one in facts))
        if number + 1 == options.messages:
            sys.stdout.write("WRITTEN\n")
            sys.stdout.flush()
            if not options.forever:
                break
    store.close()


if __name__ == "__main__":
    main()
