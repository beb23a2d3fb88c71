"""The limit of open files and sockets of this process (RLIMIT_NOFILE)."""

from __future__ import annotations

import resource

from store.logs import get_logger

_log = get_logger(__name__)


def connections_that_fit(wanted: int, reserved: int) -> int:
    """Return how many of `wanted` connections are possible in addition to `reserved` other descriptors.

    Raises the soft limit as far as the hard limit allows, and logs a warning if fewer than `wanted` fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + reserved
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    fitting = max(soft - reserved, 1)
    _log.warning(
        "max_connections_reduced",
        max_connections=wanted,
        effective=fitting,
        descriptors=soft,
        remedy="raise the limit of open files (ulimit -n), or lower max_connections",
    )
    return fitting
