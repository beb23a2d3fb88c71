"""A mutant: the program with one deliberate mistake, in its own process, and the search for it.

The source of one module is changed when it is imported. So a mistake may be at any place, and nothing of it
is left in the process that started the search.
"""

from __future__ import annotations

import io
import sys
import time
from contextlib import redirect_stdout
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
MODEL, STORE = "model", "store"
OWN = ("actors", "cluster", "store", "tests")
FIRST_SEED_ON_STORES = 5_000


class Mutation(NamedTuple):
    """A mistake: `old` in the file is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str
    finder: str = MODEL
    """MODEL or STORE, schedules on these logs; or a file of tests."""
    equivalent: str = ""
    """Why the mistake does no harm, so that nothing finds it; empty for the others."""


def changed(source: str, mutation: Mutation) -> str:
    """Return the source with the mistake. Raises ValueError unless its place is there once."""
    if source.count(mutation.old) != 1:
        raise ValueError(f"{mutation.file} has {source.count(mutation.old)} places for {mutation.name!r}")
    return source.replace(mutation.old, mutation.new)


def install(mutation: Mutation) -> None:
    """Let this process import the program again, with the mutated module."""
    module = mutation.file.removesuffix(".py").replace("/", ".")
    for name in [each for each in sys.modules if each.split(".")[0] in OWN and "mutation" not in each]:
        del sys.modules[name]
    loader: Any = SourceFileLoader
    get_code = loader.get_code

    def get_mutated_code(self: SourceFileLoader, fullname: str) -> Any:
        if fullname != module:
            return get_code(self, fullname)
        source = changed((ROOT / mutation.file).read_text(), mutation)
        return self.source_to_code(source.encode(), self.path)

    loader.get_code = get_mutated_code


def search(mutation: Mutation, seconds: float) -> str | None:
    """Return what finds the mistake within this CPU time, or None. Imports the mutated program."""
    if mutation.finder in (MODEL, STORE):
        return _search_schedules(mutation.finder, seconds)
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "-m", ""]
    with redirect_stdout(io.StringIO()):
        code = pytest.main([*options, str(ROOT / mutation.finder)])
    return "its tests" if code == pytest.ExitCode.TESTS_FAILED else None


def _search_schedules(finder: str, seconds: float) -> str | None:
    from tests.sim.run import MODEL as MODEL_LEVEL
    from tests.sim.schedule import draw
    from tests.sim.store_level import stores_in_memory

    if finder == MODEL:
        return _first_failure(MODEL_LEVEL.run, draw, 0, seconds)
    with stores_in_memory() as level:
        return _first_failure(
            level.run, lambda seed: draw(seed, sends=40, faults=10), FIRST_SEED_ON_STORES, seconds
        )


def _first_failure(run: Any, drawn: Any, first: int, limit_s: float) -> str | None:
    began, seed = time.process_time(), first
    while time.process_time() < began + limit_s:
        try:
            run(drawn(seed))
        except Exception as error:  # noqa: BLE001 - any failure is a finding
            seconds = time.process_time() - began
            return f"schedule {seed - first + 1} ({seconds:.0f} s): {type(error).__name__} {error}"[:170]
        seed += 1
    return None
