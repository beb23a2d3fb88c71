"""`python -m tests.mutation [WORDS]`: search for each mistake of the table, and print what finds it.

Exits with 1 if one is not found within the time, or an equivalent one is found.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from functools import partial

import tests.sim.store_level  # noqa: F401 - imported once, before the processes of the searches begin
from tests.mutation.mutant import Mutation, install, search
from tests.mutation.table import MUTATIONS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("words", nargs="*", help="only mistakes with one of these texts in their names")
    parser.add_argument("--seconds", type=float, default=60, help="CPU time of each search")
    parser.add_argument("--jobs", type=int, default=1, help="searches at the same time")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    words = arguments.words
    wanted = [each for each in MUTATIONS if not words or any(word in each.name for word in words)]
    wrong = 0
    processes = multiprocessing.get_context("fork").Pool(arguments.jobs, maxtasksperchild=1)
    with processes as pool:
        results = pool.imap(partial(_search_here, arguments.seconds), wanted, chunksize=1)
        for mutation, result in zip(wanted, results, strict=True):
            wrong += (result is None) != bool(mutation.equivalent)
            text = result or ("equivalent" if mutation.equivalent else "NOT FOUND")
            print(f"| {mutation.name} | {mutation.finder} | {text} |", flush=True)  # noqa: T201
    return 1 if wrong else 0


def _search_here(seconds: float, mutation: Mutation) -> str | None:
    """Search for a mistake in this process, which ends then."""
    install(mutation)
    return search(mutation, seconds)


if __name__ == "__main__":
    sys.exit(main())
