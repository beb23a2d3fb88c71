"""StreamManifestDirectory: reads and writes the manifests of one stream, in the checkpoint of its query.

    <checkpointLocation>/raymq/<topic>/source.json              topic, cluster, query, starting positions
    <checkpointLocation>/raymq/<topic>/manifests/<number>.json  one per batch, see `stream_manifest`

Files are written through Hadoop's FileSystem API, so all checkpoint locations that Spark supports are
supported. A file is renamed after it is written, so that Spark never reads an incomplete file. Spark's file
source reads the manifests in order of modification time.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from jobs.spark.java import java_package, java_session
from jobs.spark.stream.stream_errors import CheckpointMismatch
from jobs.spark.stream.stream_manifest import Row, decode_rows, is_fault
from store.common.clock import Clock
from store.message.message_queue import MessageQueue

SOURCE = "source.json"
NO_FILE = -1


class StreamManifestDirectory:
    """The manifest files of the stream of `topic`. `checkpoint` is a path or URI that Spark accepts."""

    def __init__(self, spark: SparkSession, checkpoint: str, topic: str, clock: Clock) -> None:
        self._java = java_package(spark)
        self._clock = clock
        root = self._path(checkpoint)
        # A new instance, because disabling checksum files on the shared instance would affect Spark.
        self._files = self._java.org.apache.hadoop.fs.FileSystem.newInstance(
            root.toUri(), java_session(spark).sessionState().newHadoopConf()
        )
        self._files.setWriteChecksum(False)
        self.checkpoint = str(self._files.makeQualified(root).toString())
        self._streams = f"{self.checkpoint}/raymq"
        self._directory = f"{self._streams}/{topic}"
        self.manifests = f"{self._directory}/manifests"
        self._newest_ms = 0
        self._numbers: list[int] = []

    def create(self) -> None:
        """Create the directory of the manifests, which must exist when Spark's file source is created."""
        self._files.mkdirs(self._path(self.manifests))

    def source(self) -> dict[str, Any] | None:
        """Return the content of `source.json`, or None if no query has read this stream."""
        path = f"{self._directory}/{SOURCE}"
        return json.loads(self._read(path)) if self._exists(path) else None

    def write_source(self, content: dict[str, Any]) -> None:
        """Write `source.json`: topic, cluster, query id and starting positions. Each restart checks them."""
        self._write(f"{self._directory}/{SOURCE}", json.dumps(content).encode(), 0)

    def used_topics(self) -> list[str]:
        """Return the topics whose streams use this checkpoint, sorted."""
        names = [path.getName() for path in self._list(self._streams)]
        return sorted(name for name in names if self._exists(f"{self._streams}/{name}/{SOURCE}"))

    def has_batches(self) -> bool:
        """Return True if the checkpoint contains at least one batch of a query."""
        return any(path.getName().isdecimal() for path in self._list(f"{self.checkpoint}/offsets"))

    def load(self) -> tuple[int, list[Row]]:
        """Return the number of the last manifest and the rows of the last manifest that has any.

        The number is -1 if there is no manifest. A manifest that ended an earlier run with an error is
        truncated, so that the restarted query does not fail again. The empty file is not deleted, because
        Spark may have planned a batch with it.
        """
        self._numbers = sorted(
            int(path.getName().partition(".")[0]) for path in self._list(self.manifests) if _is_manifest(path)
        )
        rows: list[Row] = []
        for number in reversed(self._numbers):
            path = self._manifest(number)
            rows = decode_rows(self._read(path))
            if is_fault(rows):
                self._files.create(self._path(path), True).close()
                rows = []
            elif rows:
                break
        statuses = self._files.listStatus(self._path(self.manifests))
        self._newest_ms = max((status.getModificationTime() for status in statuses), default=0)
        return self._numbers[-1] if self._numbers else NO_FILE, rows

    def write(self, number: int, data: bytes) -> None:
        """Write manifest `number` with content `data`.

        Its modification time is later than that of all other manifests, so that Spark reads it after them.
        Raises `CheckpointMismatch` if the manifest exists, because another process wrote it.
        """
        path = self._manifest(number)
        if self._exists(path):
            raise CheckpointMismatch(
                f"another process has written {path}: run only one query at a time with checkpoint"
                f" {self.checkpoint}"
            )
        self._newest_ms = max(self._clock.wall_ms(), self._newest_ms + 1)
        self._write(path, data, self._newest_ms)
        self._numbers.append(number)

    def remove_before(self, number: int) -> None:
        """Delete the manifests with numbers less than `number`."""
        while self._numbers and self._numbers[0] < number:
            self._files.delete(self._path(self._manifest(self._numbers.pop(0))), False)

    def is_empty(self) -> bool:
        """Return True if the directory contains no manifest."""
        return not any(_is_manifest(path) for path in self._list(self.manifests))

    def queue_positions(self, positions: dict[MessageQueue, int]) -> list[list[Any]]:
        """Encode positions for `source.json`: a list of [topic, broker name, queue id, position]."""
        return [[*queue, position] for queue, position in sorted(positions.items())]

    def _manifest(self, number: int) -> str:
        return f"{self.manifests}/{number:020d}.json"

    def _path(self, path: str) -> Any:
        return self._java.org.apache.hadoop.fs.Path(path)

    def _exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def _list(self, directory: str) -> list[Any]:
        if not self._exists(directory):
            return []
        return [status.getPath() for status in self._files.listStatus(self._path(directory))]

    def _read(self, path: str) -> bytes:
        stream = self._files.open(self._path(path))
        try:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def _write(self, path: str, data: bytes, modified_ms: int) -> None:
        # The temporary name begins with a dot: Spark's file source ignores such files.
        directory, _, name = path.rpartition("/")
        draft, target = self._path(f"{directory}/.{name}.draft"), self._path(path)
        stream = self._files.create(draft, True)
        try:
            stream.write(data)
        finally:
            stream.close()
        if modified_ms:
            self._files.setTimes(draft, modified_ms, -1)
        if not self._files.rename(draft, target):
            raise OSError(f"cannot rename {draft.toString()} to {target.toString()}")


def _is_manifest(path: Any) -> bool:
    name = str(path.getName())
    return name.endswith(".json") and name.partition(".")[0].isdecimal()
