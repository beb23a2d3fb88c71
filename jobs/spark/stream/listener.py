"""StreamListener: starts a planner when a query of a stream starts, and stops it when the query ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from jobs.spark.java import is_active, java_session
from jobs.spark.stream.planner import Planner
from store.common.logs import get_logger

_log = get_logger(__name__)


class Stream(Protocol):
    """A stream of messages for a streaming query."""

    @property
    def manifests(self) -> str:
        """The manifest directory, as the path of Spark's file source."""

    @property
    def metric(self) -> str:
        """The name of the stream's metrics in the progress reports of the query."""

    def planner(self, query_id: str, checkpoint: str, is_query_alive: Callable[[], bool]) -> Planner | None:
        """Return a planner for the query, or None if the query must not read this stream.

        Args:
            query_id: Id of the query, which remains the same when the query is restarted.
            checkpoint: Checkpoint location of the query.
            is_query_alive: Returns True until this run of the query ends.
        """


class StreamListener(StreamingQueryListener):
    """Runs the planners of all queries. Spark calls `onQueryStarted` before the first batch of a query."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._streams: dict[str, Stream] = {}
        self._running: dict[str, dict[str, Planner]] = {}
        self._latest: dict[str, Planner] = {}  # by manifest directory

    def add(self, stream: Stream) -> None:
        """Run planners for queries that read `stream`. Replaces a stream with the same manifest directory."""
        self._streams[stream.manifests] = stream

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark defines the names
        """Start a planner for each stream that the query reads.

        If the query ends after the available messages (triggers availableNow and once), write all its
        manifests before returning instead.
        """
        try:
            query = java_session(self._spark).streams().get(str(event.id)).streamingQuery()
            for path in _paths(query):
                if path in self._streams:
                    self._start(self._streams[path], query, str(event.id), str(event.runId))
        except Exception as error:  # noqa: BLE001 - Spark ignores exceptions of listeners
            _log.error("stream_planning_failed", query_id=str(event.id), error=str(error), exc_info=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report the manifest of the committed batch to the planners of the query."""
        for metric, planner in self._running.get(str(event.progress.runId), {}).items():
            row = event.progress.observedMetrics.get(metric)
            if row is not None and row["manifest"] is not None:
                planner.committed(row["manifest"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the planners poll for new messages themselves."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Stop the planners of the query."""
        for planner in self._running.pop(str(event.runId), {}).values():
            planner.stop()

    def _start(self, stream: Stream, query: Any, query_id: str, run_id: str) -> None:
        def is_alive() -> bool:
            return is_active(self._spark) and bool(query.isActive())

        planner = stream.planner(query_id, str(query.resolvedCheckpointRoot()), is_alive)
        if planner is None:
            return
        # Spark reports the end of the previous run later, so its planner may still be writing a manifest.
        previous = self._latest.get(stream.manifests)
        if previous is not None:
            previous.stop()
            previous.join()
        self._latest[stream.manifests] = planner
        self._running.setdefault(run_id, {})[stream.metric] = planner
        trigger = str(query.trigger().toString())
        if trigger.startswith(("AvailableNow", "OneTime")):
            planner.plan_available(in_one_batch=trigger.startswith("OneTime"))
        else:
            planner.start()


def _paths(query: Any) -> Iterator[str]:
    """Yield the paths of all file sources in the plan of the Java object `query`."""
    leaves = query.analyzedPlan().collectLeaves()
    paths = set()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            path = leaf.dataSource().options().get("path")
            paths |= {str(path.get())} if path.isDefined() else set()
    yield from paths


_listeners: WeakKeyDictionary[SparkSession, StreamListener] = WeakKeyDictionary()


def listener_of(spark: SparkSession) -> StreamListener:
    """Return the streaming query listener of a Spark session; create and register it on the first call."""
    listener = _listeners.get(spark)
    if listener is None:
        listener = _listeners[spark] = StreamListener(spark)
        spark.streams.addListener(listener)
    return listener
