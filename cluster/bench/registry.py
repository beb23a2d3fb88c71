"""All benches by name, and the running of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import cast

from cluster.bench.machine import StolenShare
from cluster.bench.options import Bench, BenchOptions
from cluster.bench.result import BenchResult

BENCHES = {
    "send-table": "Columns by send_table: 8 queues split by key hash, index on; `all` runs both flush modes.",
    "send-one": "One message after the other, blocking face.",
    "send-async": "64 concurrent async sends.",
    "send-batch": "Message objects in batches of 256, and send_many over plain sequences.",
    "pull-arrow": "A backlog as Arrow over the socket, all columns.",
    "push": "A listener with up to 32 messages a call, every field read.",
    "spark-read": "Spark local[2] over mapped files: bodies summed, and all columns to noop.",
    "recovery": "A 2 GiB log: the scan alone, and with queues and index rebuilt.",
    "many-queues": "Columns by send_table to 20,000 queues, and to 8; the start with them, memory, disk.",
    "backlog": "Sends, pulls and starts of a broker with 50 M messages beside those of an empty one.",
    "verify": "A 2 GiB log with its queues and index: all of it compared, with CRC.",
    "interference": "One message after the other, while cold files are read, files roll, peers come and go.",
    "connections": "Sends beside 5,000 open connections with 50,000 held pulls; memory a held pull.",
    "machine": "The machine's own limits: memory, disk, sockets.",
}
"""Name of a bench → what it measures; its module has the same name."""

ALL = "all"
UNDER_BOTH_FLUSH_MODES = ("send-table",)


def run_bench(name: str, options: BenchOptions) -> list[BenchResult]:
    """Import a bench, with all that it needs, and run it; the share of the processors that the host took
    meanwhile is told beside the figures, which are too low by as much at least. Raises `BenchFailed`.
    """
    bench = cast("Bench", import_module(f"cluster.bench.{name.replace('-', '_')}").run)
    share = StolenShare()
    results = bench(options)
    stolen = round(share.so_far(), 3)
    return [replace(each, parameters={**each.parameters, "stolen": stolen}) for each in results]


def run_named(name: str, options: BenchOptions) -> Iterator[tuple[str, list[BenchResult]]]:
    """Run one bench, or all of them with the machine's limits first; gives each name with its results."""
    if name != ALL:
        yield name, run_bench(name, options)
        return
    for each in ("machine", *(other for other in BENCHES if other != "machine")):
        yield each, run_bench(each, options)
        if each in UNDER_BOTH_FLUSH_MODES:
            other = "sync" if options.flush == "async" else "async"
            yield each, run_bench(each, replace(options, flush=other))
