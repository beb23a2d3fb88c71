"""BrokerExports: copies the messages of drained brokers to Parquet files, with `raymq export`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from cluster.autoscale.controller import BrokerUnavailable
from store.common.logs import get_logger

_log = get_logger(__name__)


class BrokerExports:
    """The exports of brokers that are being removed, one after another. It is used by one thread."""

    def __init__(self, directory: Path, nameservers: Sequence[str]) -> None:
        """Create it; the archives will be `directory`/TOPIC/BROKER-TIME."""
        self._directory = directory
        self._nameservers = ";".join(nameservers)
        self._thread = ThreadPoolExecutor(1, "export")
        self._running: dict[str, Future[None]] = {}

    def is_running(self, broker: str) -> bool:
        """Return True if an export of `broker` has begun and its result was not returned by `finish`."""
        return broker in self._running

    def begin(self, broker: str, topics: Sequence[str]) -> None:
        """Begin to export the messages that `broker` has of `topics`."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._running[broker] = self._thread.submit(self._export, broker, topics, f"{broker}-{stamp}")

    def finish(self, broker: str) -> bool:
        """Return True if the export of `broker` has succeeded, False if it is not finished.

        Raises BrokerUnavailable if it failed; it may begin again then.
        """
        if not self._running[broker].done():
            return False
        self._running.pop(broker).result()
        return True

    def forget(self, broker: str) -> None:
        """Ignore the result of an export: the broker has more messages by now, or was removed."""
        self._running.pop(broker, None)

    def _export(self, broker: str, topics: Sequence[str], name: str) -> None:
        for topic in topics:
            archive = self._directory / topic / name
            done = subprocess.run(
                [
                    sys.executable, "-m", "cluster.cli.entry", "export", topic, str(archive),
                    "--broker", broker, "--nameserver", self._nameservers,
                ],
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode != 0:
                error = f"cannot export topic {topic} of {broker} to {archive}: {done.stderr.strip()}"
                _log.warning("broker_export_failed", broker=broker, topic=topic, error=error)
                raise BrokerUnavailable(error)
            _log.info("broker_exported", broker=broker, topic=topic, archive=str(archive))
