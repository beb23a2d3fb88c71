"""One run of a storm: senders and consumer groups work while harm is done, and the history is judged."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable

from cluster.client import Admin
from tests.checkers import Recorder, assert_consistent
from tests.eventually import TIME_SCALE
from tests.faults.storm import TOPIC, Storm
from tests.faults.storm_senders import sending

DURATION_S = float(os.environ.get("RAYMQ_STORM_S", "600"))
QUEUES = 4
SHARED_GROUPS = ("concurrent", "ordered")
READERS = (*SHARED_GROUPS, "broadcasting-0", "broadcasting-1")


def print_seed() -> int:
    """Return the seed of this run, after writing it for the next one."""
    seed = int(os.environ.get("RAYMQ_STORM_SEED", random.randrange(1_000_000)))
    sys.stdout.write(f"RAYMQ_STORM_SEED={seed} RAYMQ_STORM_S={DURATION_S:g} time scale {TIME_SCALE:g}\n")
    return seed


def run_storm(storm: Storm, recorder: Recorder, seed: int, rage: Callable[[], None]) -> None:
    """Send and consume while `rage` runs, then until all is delivered; fail if the checks find a problem.

    Args:
        storm: its processes have just been started; they are stopped at the end.
        recorder: of the senders; writes to the file to which the consumers write.
        seed: determines the messages.
        rage: does harm, and returns.
    """
    with Admin(storm.nameserver) as admin:
        storm.until(lambda: set(admin.brokers()) == set(storm.brokers), "the brokers")

        def is_created() -> bool:
            admin.create_topic(TOPIC, queues=QUEUES)
            return True

        def open_on_brokers(name: str) -> bool:
            return any(admin.broker_runtime(broker)[name] != "0" for broker in storm.brokers)

        def is_consumed(group: str) -> bool:
            return admin.committed_offsets(group, TOPIC) == admin.end_offsets(TOPIC)

        storm.until(is_created, "the topic")
        with sending(storm.nameserver, TOPIC, recorder, seed) as is_over:
            rage()
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
