"""`python -m jobs.reindex` as a job of the Ray cluster, with RayDP executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.control.session.ray_head import read_record
from store.common.clock import Clock
from tests.cluster.conftest import REPO, RayMQ
from tests.eventually import LIMIT_S, eventually
from tests.store.conftest import SmallStores, a_draft

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.extended]


def submit(raymq: RayMQ, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Submit a re-index as a Ray job and wait until it has finished."""
    record = read_record(raymq.home)
    assert record is not None
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--address", record.dashboard]
    command += ["--working-dir", ".", "--", "python", "-m", "jobs.reindex", *arguments]
    environment = {key: value for key, value in raymq.environment.items() if key != "PYTHONPATH"}

    def submitted() -> subprocess.CompletedProcess[str] | None:
        done = subprocess.run(
            command,
            env=environment,
            cwd=REPO,
            capture_output=True,
            text=True,
            timeout=8 * LIMIT_S,
            check=False,
        )
        # Ray's agent may start later than the head, which already reports that it is running.
        return None if "No available agent" in done.stderr else done

    done = eventually(submitted, "the job agent of Ray", within_s=120)
    assert done is not None
    return done


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
