"""LakeRounds: the rounds of all topics of a lake, one after another, and what is known about each table.

topics that match ──► round of each (`round`) ──► offsets of the table = committed offsets of the lake's group
                                                  │ lag, console and retention of the brokers read these

The tables decide what they contain; the offsets of the group only follow them, also after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from cluster.client import Admin
from cluster.client.errors import ClientError, GroupNotFound
from jobs.job_errors import JobError
from jobs.lake.catalogs import open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import Engine, write_round
from jobs.lake.status import lake_status
from jobs.lake.upkeep import compact, expire, remove_orphans
from jobs.lake_service.process_settings import LakeProcessSettings
from jobs.reading.describe import states_of
from jobs.reading.options.topics import user_topics
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger
from store.message.group_config import SubscriptionGroupConfig
from store.message.message_queue import MessageQueue
from store.store_errors import StoreError

_log = get_logger(__name__)

COMPACTED_MAX = 4
"""Files that one upkeep writes; the next round waits for them."""
OpenEngine = AbstractContextManager[Engine]
FAILURES = (JobError, ClientError, StoreError, OSError)
"""The errors after which the next round tries again. Others are bugs: the process restarts."""


@dataclass(frozen=True)
class TableProgress:
    """What the last rounds of a topic have found; None is unknown.

    Attributes:
        caught_up_ns: Begin of the last round that wrote all that was confirmed, on the monotonic clock.
        rows: Rows of the table.
        files: Data files of the table.
        snapshot: Id of its snapshot.
        lost: Messages in the gaps of the table.
        failures: Failed rounds in a row.
        problem: Why the last round failed, or what it found; else empty.
    """

    caught_up_ns: int | None = None
    rows: int | None = None
    files: int | None = None
    snapshot: int | None = None
    lost: int | None = None
    failures: int = 0
    problem: str = ""

    def behind_s(self, now_ns: int) -> float | None:
        """Return the seconds since the table had all messages; None if it is unknown."""
        return None if self.caught_up_ns is None else (now_ns - self.caught_up_ns) / NS_PER_MS / 1000


class LakeRounds:
    """Runs rounds in one thread; other threads read `tables` and the counts."""

    def __init__(
        self, settings: LakeProcessSettings, open_engine: Callable[[], OpenEngine], clock: Clock
    ) -> None:
        """Create the rounds; the first one opens the engine, in its thread."""
        self._settings = settings
        self._open_engine = open_engine
        self._opened = ExitStack()
        self._engine: Engine | None = None
        self._clock = clock
        self._catalog: Any = None  # PyIceberg's
        self._upkeep_due_ns: dict[str, int] = {}
        self.tables: dict[str, TableProgress] = {}
        self.problem = ""
        """Why the topics or the catalog cannot be read; else empty."""
        self.rounds = 0
        self.failed_rounds = 0
        self.failed_upkeeps = 0

    def tick(self, is_stopping: Callable[[], bool] = lambda: False) -> bool:
        """Run a round of each topic. Return True if messages are left that a next round may write at once."""
        try:
            if self._engine is None:
                self._engine = self._opened.enter_context(self._open_engine())
            with Admin(self._settings.nameservers) as admin:
                topics = self._topics(admin)
                for gone in self.tables.keys() - topics:
                    del self.tables[gone]
                    self._upkeep_due_ns.pop(gone, None)
                is_left = False
                for topic in sorted(topics):
                    if is_stopping():
                        return False
                    is_left |= self._round(admin, topic)
                self.problem = ""
                return is_left
        except FAILURES as error:
            self.failed_rounds += 1
            self._report("", self.problem, error)
            self.problem = str(error)
            return False

    def close(self) -> None:
        """Close the engine."""
        self._opened.close()

    def _topics(self, admin: Admin) -> set[str]:
        patterns = self._settings.topics
        return {topic for topic in user_topics(admin) if any(fnmatchcase(topic, each) for each in patterns)}

    def _round(self, admin: Admin, topic: str) -> bool:
        before, begin_ns = self.tables.get(topic, TableProgress()), self._clock.monotonic_ns()
        self.rounds += 1
        try:
            self._catalog = self._catalog or open_catalog(self._settings.lake)
            settings = self._settings
            table = LakeTable.create(self._catalog, settings.namespace, topic, bodies=settings.bodies)
            result = write_round(table, lambda: states_of(admin, topic), self._engine)
            shown = lake_status(table, None, datetime.now(UTC))
            found = TableProgress(None, shown.rows, shown.files, shown.snapshot, shown.lost)
            self._keep(admin, topic, result.state.offsets)
        except FAILURES as error:
            self._catalog = None  # its secrets may have changed
            self.failed_rounds += 1
            self._report(topic, before.problem, error)
            self.tables[topic] = replace(before, failures=before.failures + 1, problem=str(error))
            return False
        if result.ahead:
            queues = ", ".join(map(str, result.ahead[:3]))
            found = replace(found, problem=f"the table has more messages than {queues}: its log went back")
        is_caught_up = not result.remaining and not result.ahead
        self.tables[topic] = replace(found, caught_up_ns=begin_ns if is_caught_up else before.caught_up_ns)
        if not result.remaining and begin_ns >= self._upkeep_due_ns.get(topic, begin_ns):
            self._upkeep_due_ns[topic] = begin_ns + int(self._settings.upkeep_interval_s * 1000) * NS_PER_MS
            self._upkeep(table)
        return result.remaining > 0

    def _upkeep(self, table: LakeTable) -> None:
        """Compact small files, expire snapshots and delete what none has; failures are repeated later."""
        try:
            compaction = compact(table, groups_max=COMPACTED_MAX)
            expired = expire(table, timedelta(hours=self._settings.snapshots_kept_h))
            orphans = remove_orphans(table)
        except FAILURES as error:
            self.failed_upkeeps += 1
            _log.warning("lake_upkeep_failed", topic=table.topic, error=str(error))
            return
        if compaction.files_before or expired or orphans:
            before, after = compaction.files_before, compaction.files_after
            _log.info(
                "lake_upkeep_done", topic=table.topic, files_before=before, files_after=after,
                snapshots_expired=expired, files_deleted=orphans,
            )  # fmt: skip

    def _keep(self, admin: Admin, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit the offsets of a table for the lake's group: up to there, brokers may delete their log."""
        group = self._settings.group
        known = {queue: each.committed for queue, each in admin.group_stats(group, topic).offsets.items()}
        changed = {queue: end for queue, end in offsets.items() if known.get(queue) != end}
        try:
            if changed:
                admin.commit_offsets(group, changed)
        except GroupNotFound:  # also of a broker that is new
            admin.put_group(SubscriptionGroupConfig(group))
            admin.commit_offsets(group, changed)

    def _report(self, topic: str, before: str, error: Exception) -> None:
        if str(error) != before:
            _log.error("lake_round_failed", topic=topic, error=str(error))
