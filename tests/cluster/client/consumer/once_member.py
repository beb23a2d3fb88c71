"""Consumer process with a Deduplicator, which kills itself at one step of its first listener call.

    python -m tests.cluster.client.consumer.once_member NAMESERVER GROUP TOPIC SEEN EFFECTS STEP

The effect of a message is a line in the file EFFECTS. STEP is `effect` (killed before it), `mark` (killed
between the effect and the mark), `commit` (killed between the mark and the commit of the offset) or `never`.
The process exits at the end of its standard input.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.client import Deduplicator, MessageExt, PushConfig, PushConsumer, SqliteSeen
from tests.faults.member import LEASE_MS


class KilledAtMark(SqliteSeen):
    """Store whose process is killed before or after the first mark."""

    def __init__(self, path: Path, step: str) -> None:
        super().__init__(path)
        self._step = step

    def mark(self, keys: Sequence[str]) -> None:
        if self._step == "mark":
            os.kill(os.getpid(), signal.SIGKILL)
        super().mark(keys)
        if self._step == "commit":
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Consume until the end of standard input."""
    nameserver, group, topic, seen, effects, step = sys.argv[1:]

    def listen(messages: list[MessageExt]) -> None:
        if step == "effect":
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(effects).open("ab") as file:
            file.writelines(message.body + b"\n" for message in messages)

    config = PushConfig(lease_ms=LEASE_MS, sync_interval_ms=200, consume_threads=1)
    with (
        Deduplicator(KilledAtMark(Path(seen), step)) as once,
        PushConsumer(nameserver, group, once(listen), config=config) as consumer,
    ):
        consumer.subscribe(topic)
        sys.stdin.read()


if __name__ == "__main__":
    main()
