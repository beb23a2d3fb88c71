"""`python -m jobs.reindex` as a job of the Ray cluster, with RayDP executors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from store.common.clock import Clock
from tests.cluster.conftest import REPO, RayMQ
from tests.cluster.ray_helpers import submit_job
from tests.store.conftest import SmallStores, a_draft

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


def submit(raymq: RayMQ, *arguments: str) -> subprocess.CompletedProcess[str]:
    return submit_job(raymq, REPO, "python", "-m", "jobs.reindex", *arguments)


def test_submitted_job_reindexes_a_store_and_refuses_an_open_one(
    running: RayMQ, tmp_path: Path, clock: Clock
) -> None:
    stores = SmallStores(tmp_path, clock)
    store = stores.open()
    for number in range(200):
        store.append(a_draft(b"%d " % number * 20, queue_id=number % 3, keys=f"k{number}", tags="T"))
    store.flush_now()
    store.dispatch_now()
    store.close()
    files = stores.files(store.root)
    for path in (store.root / "consumequeue").glob("*/*/*"):
        path.write_bytes(bytes(path.stat().st_size))
    done = submit(running, "store", str(store.root), "--executors", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 queues and 4 index files written; 200 records" in done.stdout
    assert stores.files(store.root) == files
    refused = submit(running, "store", str(running.store("broker-a")))
    assert refused.returncode == 1
    assert "has this store open: stop the broker" in refused.stdout + refused.stderr
