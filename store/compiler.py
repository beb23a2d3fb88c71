"""The process that compiles the kernels of a broker into the cache: `python -m store.compiler`."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

from store.common.kernel_cache import COMPLETE, cache_directory

KERNELS_OF_A_BROKER = 49
PROGRESS_INTERVAL_S = 0.5


def main() -> None:
    """Compile all kernels of a broker."""
    directory = cache_directory()
    threading.Thread(target=_note_progress, args=(directory,), daemon=True).start()
    from store.warm import load  # many kernels compile when their module is imported

    load()
    (directory / COMPLETE).touch()


def _note_progress(directory: Path) -> None:
    while True:
        count = sum(1 for _ in directory.glob("*.nbi"))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        spent_s = usage.ru_utime + usage.ru_stime
        new = directory / "progress.new"
        new.write_text(f"compiling {count} of {KERNELS_OF_A_BROKER} kernels, {spent_s:.0f} s of CPU time")
        new.replace(directory / "progress")
        time.sleep(PROGRESS_INTERVAL_S)


if __name__ == "__main__":
    main()
