"""A writer of rounds that dies, or meets a fault, at a chosen point."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from jobs.lake.catalogs import LakeSettings, open_catalog
from jobs.lake.lake_table import LakeTable
from jobs.lake.round import RoundOptions, write_round
from jobs.lake.upkeep import compact
from jobs.lake.write_rows import DayFiles, WriteTask
from jobs.lake_service.lake_rounds import FAILURES
from jobs.reading.describe import describe_topic

TOPIC = "faulty"
KILLS = ("before files", "between files", "before commit", "in commit", "after commit", "in compaction")
FAULTS = ("lost response", "lost request", "full disk", "locked catalog")
FILE_BYTES = 2_000
DISK_BYTES = 3_000
LOCK_TIMEOUT_S = 0.2

Die = Callable[[], NoReturn]


class Killed(BaseException):
    """Stands for the end of the process: nothing handles it."""


def be_killed() -> NoReturn:
    raise Killed


def kill_this_process() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def inject(patch: pytest.MonkeyPatch, point: str, die: Die) -> None:
    """Let the writer end, or let its environment fail, at a point."""
    commit, write = SqlCatalog.commit_table, DayFiles.write

    def dying(*_: Any, **__: Any) -> NoReturn:
        die()

    def write_one(files: DayFiles, rows: Any) -> None:
        write(files, rows)
        die()

    def commit_first(*given: Any) -> Any:
        commit(*given)
        die()

    def lose_response(*given: Any) -> Any:
        commit(*given)
        raise CommitStateUnknownException("connection reset")

    def lose_request(*given: Any) -> Any:
        raise CommitStateUnknownException("connection reset")

    targets: dict[str, tuple[type, str, Any]] = {
        "before files": (WriteTask, "run", dying),
        "between files": (DayFiles, "write", write_one),
        "before commit": (LakeTable, "commit", dying),
        "in commit": (SqlCatalog, "commit_table", dying),
        "after commit": (SqlCatalog, "commit_table", commit_first),
        "in compaction": (SqlCatalog, "commit_table", dying),
        "lost response": (SqlCatalog, "commit_table", lose_response),
        "lost request": (SqlCatalog, "commit_table", lose_request),
    }
    if point in targets:
        patch.setattr(*targets[point])


def open_table(warehouse: Path) -> LakeTable:
    database = f"sqlite:///{warehouse}/catalog.db?timeout={LOCK_TIMEOUT_S}"
    warehouse.mkdir(parents=True, exist_ok=True)
    settings = LakeSettings(str(warehouse), catalog={"type": "sql", "uri": database})
    return LakeTable.create(open_catalog(settings), settings.namespace, TOPIC)


def run_round(nameservers: str, table: LakeTable) -> int:
    """Run a round with small files; return the number of messages that are left."""
    options = RoundOptions(file_bytes=FILE_BYTES)
    return write_round(table, lambda: describe_topic(nameservers, TOPIC), options=options).remaining


def main(nameservers: str, warehouse: Path, point: str, ready: Connection) -> None:
    """Run rounds and compactions until the process is killed, from outside or at `point`."""
    table = open_table(warehouse)
    ready.send("")
    if point == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (DISK_BYTES, DISK_BYTES))  # as if a quota were used up
    with pytest.MonkeyPatch.context() as patch:
        if point != "in compaction":
            inject(patch, point, kill_this_process)
        pause = threading.Event()
        while True:
            with suppress(*FAILURES):
                run_round(nameservers, table)
                if point == "in compaction":
                    inject(patch, point, kill_this_process)
                compact(table, files_min=3)
            pause.wait(0.02)
