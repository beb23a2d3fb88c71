"""Fill the free memory with cached file pages, as on a machine that has been running for a while.

A hypervisor may take free memory back from a virtual machine. The first access to such memory then takes ten
times as long as writing to it (measured: 0.5 GB/s), so a benchmark that writes would measure the hypervisor.
On a machine whose memory is in use, new pages replace the oldest cached pages instead.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import NamedTemporaryFile

from store.disk.touch_ahead import touch_sequentially

DIRECTORY = "/var/tmp"


@contextmanager
def full_page_cache() -> Iterator[None]:
    """Fill the free memory with pages of a file without data.

    The pages are clean: the kernel drops them when it needs memory, and the rest at the end of the context.
    """
    with NamedTemporaryFile(dir=DIRECTORY, prefix="page-cache-") as file:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        file.truncate(free_bytes)
        touch_sequentially(file.name, 0, free_bytes)
        yield
