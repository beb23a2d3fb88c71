"""`jobs.reindex_store` and `raymq reindex store` on a local Spark session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from jobs.job_errors import ReindexFailed
from store.common.clock import Clock
from tests.eventually import LIMIT_S
from tests.store.conftest import SmallStores, a_draft

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOG_FILE_BYTES = 8192


@pytest.fixture
def stores(tmp_path: Path, clock: Clock) -> SmallStores:
    return SmallStores(tmp_path, clock)


@pytest.fixture
def closed(stores: SmallStores) -> Path:
    """Return the root of a cleanly closed store with several files of each kind."""
    store = stores.open()
    for number in range(200):
        store.append(a_draft(b"%d " % number * 20, queue_id=number % 3, keys=f"k{number}", tags="T"))
    store.flush_now()
    store.dispatch_now()
    store.close()
    return store.root


def ruin(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(b"garbage" * 100)
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def test_spark_reindex_restores_all_files(spark: SparkSession, stores: SmallStores, closed: Path) -> None:
    from jobs import reindex_store

    files = stores.files(closed)
    ruin(closed)
    assert reindex_store(spark, closed, check=True).differences
    done = reindex_store(spark, str(closed))
    assert (done.records, done.queues) == (200, 3)
    assert stores.files(closed) == files
    assert reindex_store(spark, closed, check=True).differences == []


def test_error_of_a_task_is_raised_in_one_line(
    spark: SparkSession, stores: SmallStores, closed: Path
) -> None:
    from jobs import reindex_store
    from jobs.reindex.offline import SparkEngine

    store = stores.open()
    with pytest.raises(ReindexFailed, match="has this store open: stop the broker"):
        reindex_store(spark, closed)
    store.close()
    with pytest.raises(ReindexFailed, match="message_delay_level='soon' is invalid"):
        reindex_store(spark, closed, message_delay_level="soon")
    with pytest.raises(ReindexFailed, match=r"absent.*No such file"):
        SparkEngine(spark).run("test", [closed.joinpath("absent").stat])


def test_store_on_another_machine_is_refused_by_the_task(spark: SparkSession, closed: Path) -> None:
    """The executor finds another store, or none, at the path of the store."""
    from dataclasses import replace
    from functools import partial

    from jobs.reindex.offline import SparkEngine
    from store.tools.reindex.parts import write_part
    from store.tools.reindex.store_files import find_store

    files = find_store(closed, (), None)
    for other in (replace(files, root=closed / "absent"), replace(files, store_id="other")):
        with pytest.raises(ReindexFailed, match="this machine does not have the files of the store"):
            SparkEngine(spark).run("test", [partial(write_part, other, 0, 1)])


def test_speculation_is_refused(spark: SparkSession, closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobs import reindex_store

    conf = spark.sparkContext.getConf().set("spark.speculation", "true")
    monkeypatch.setattr(spark.sparkContext, "getConf", lambda: conf)
    with pytest.raises(ReindexFailed, match=r"set spark\.speculation to false"):
        reindex_store(spark, closed)


def test_command_checks_and_reindexes(
    spark: SparkSession, stores: SmallStores, closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    from jobs.reindex.command import app

    monkeypatch.setattr("jobs.spark.session.local_session", lambda *_: nullcontext(spark))
    files = stores.files(closed)
    unit = closed / "consumequeue" / "Topic" / "1" / f"{400:020d}"
    unit.write_bytes(bytes(400))
    log = closed / "commitlog" / f"{LOG_FILE_BYTES:020d}"
    checked = CliRunner().invoke(app, ["store", str(closed), "--check"])
    assert checked.exit_code == 1
    assert f"differs: consumequeue/Topic/1/{400:020d}: units 20 to 39 are zeros" in checked.output
    assert ": DIFFERENT; 3 queues compared; 200 records" in checked.output
    done = CliRunner().invoke(app, ["store", str(closed), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["queues"] == 3
    assert stores.files(closed) == files
    with log.open("r+b") as file:
        file.seek(95)
        file.write(b"\xff\xfe")
    damaged = CliRunner().invoke(app, ["store", str(closed)])
    assert damaged.exit_code == 0
    assert (
        f"damaged: commitlog/{LOG_FILE_BYTES:020d}: the CRC of the body is wrong (at byte 0, "
        in damaged.output
    )
    absent = CliRunner().invoke(app, ["store", str(closed / "absent")])
    assert absent.exit_code == 1
    assert "absent: no such directory" in absent.output


def test_module_help_shows_examples() -> None:
    command = [sys.executable, "-m", "jobs.reindex", "store", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert "ray job submit" in done.stdout
    assert "python -m jobs.reindex store" in done.stdout
