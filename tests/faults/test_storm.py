"""A storm: everything is stopped, killed and restarted at random for minutes; the checkers find nothing.

    RAYMQ_STORM_S=20 RAYMQ_STORM_SEED=7 uv run pytest -m extended -s tests/faults/test_storm.py

The seed is printed. It determines the harm and the messages, but not how the processes interleave.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from cluster.client import Admin
from tests.checkers import Recorder, assert_consistent
from tests.eventually import NEVER_S, TIME_SCALE
from tests.faults.storm import BROKERS, TOPIC, Storm
from tests.faults.storm_senders import sending

DURATION_S = float(os.environ.get("RAYMQ_STORM_S", "600"))
QUEUES = 4
SHARED_GROUPS = ("concurrent", "ordered")
READERS = (*SHARED_GROUPS, "broadcasting-0", "broadcasting-1")


# A repeated storm has another interleaving: a failure must not be hidden.
@pytest.mark.flaky(reruns=0)
@pytest.mark.faults
@pytest.mark.extended
@pytest.mark.timeout(DURATION_S + NEVER_S)
def test_storm_of_stops_and_kills_loses_and_reorders_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("RAYMQ_STORM_SEED", random.randrange(1_000_000)))
    sys.stdout.write(f"RAYMQ_STORM_SEED={seed} RAYMQ_STORM_S={DURATION_S:g} time scale {TIME_SCALE:g}\n")
    recorder = Recorder(tmp_path / "history")
    with Storm(tmp_path, recorder, random.Random(seed)) as storm, Admin(storm.nameserver) as admin:
        storm.until(lambda: set(admin.brokers()) == set(BROKERS), "the brokers")
        admin.create_topic(TOPIC, queues=QUEUES)

        def open_on_brokers(name: str) -> bool:
            return any(admin.broker_runtime(broker)[name] != "0" for broker in BROKERS)

        def is_consumed(group: str) -> bool:
            return admin.committed_offsets(group, TOPIC) == admin.end_offsets(TOPIC)

        with sending(storm.nameserver, TOPIC, recorder, seed) as is_over:
            storm.rage(DURATION_S)
            is_over.set()
            storm.calm()
            storm.until(lambda: not open_on_brokers("pendingTimers"), "the delivery of all timer messages")
            for reader in READERS:
                storm.until(
                    lambda reader=reader: storm.read[reader] >= storm.acknowledged,  # type: ignore[misc]
                    f"every message for {reader}",
                )
            # Senders respond to checks until here.
            storm.until(lambda: not open_on_brokers("openTransactions"), "the end of all transactions")
        for group in SHARED_GROUPS:
            storm.until(lambda group=group: is_consumed(group), f"the offsets of {group}")  # type: ignore[misc]
        storm.end()
    results = Counter((each.process, each.type) for each in storm.events if each.op == "send")
    sys.stdout.write(f"{dict(storm.harms)}\n{dict(results)}\n{len(storm.events)} events\n")
    for reader in READERS:
        events = [each for each in storm.events if each.op in ("send", "kill") or each.group == reader]
        # Concurrent calls of a listener overtake each other.
        ignored = ["not_sequential"] if reader == "ordered" else ["not_sequential", "out_of_order"]
        assert_consistent(events, f"seed {seed}, {reader}", ignore=ignored)
