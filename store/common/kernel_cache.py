"""Where compiled kernels are cached: one directory for each version of the kernels and kind of processor.

    ~/.cache/raymq/kernels-<version>-<processor>/
        walk.scan_records-160.py311.nbi, .nbc    written by numba, read by all processes of the user
        lock                                     held by the process that compiles
        progress                                 a text for operators, such as "compiling 7 of 44 kernels"
        complete                                 exists if all kernels of a broker are here

This module does not import numba, so that the driver can look.
"""

import hashlib
import os
import sys
import sysconfig
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path

KERNELS = Path(__file__).parents[1] / "kernels"
NO_KERNELS = frozenset({"__init__.py", "cache.py"})
COMPLETE = "complete"
CPU_FIELDS = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")


@cache
def content_hash() -> str:
    """Return a hash of the kernels' source files, numba's version and the platform, as 16 hex digits."""
    versions = f"{metadata.version('numba')} {sys.implementation.cache_tag} {sysconfig.get_platform()}"
    digest = hashlib.sha256(versions.encode())
    for source in sorted(KERNELS.glob("*.py")):
        if source.name not in NO_KERNELS:
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def _processor_hash() -> str:
    """Return a hash of the kind of processor for which numba compiles."""
    lines = [os.environ.get(each, "") for each in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")]
    try:
        with Path("/proc/cpuinfo").open() as processors:
            first = takewhile(str.strip, processors)
            lines += [line for line in first if line.startswith(CPU_FIELDS)]
    except OSError:
        lines.append(os.uname().machine)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:8]


def cache_root() -> Path:
    """Return the directory that contains the cache directories."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raymq"


def cache_directory() -> Path:
    """Return the cache directory for these kernels and this processor."""
    return cache_root() / f"kernels-{content_hash()}-{_processor_hash()}"


def shipped_archive() -> Path:
    """Return the file with the compiled kernels of the package; it exists unless a source has changed."""
    return KERNELS / f"compiled-{content_hash()}.tar.xz"
