"""The on-disk cache of compiled kernels: one directory per hash of the kernels' sources.

numba's own cache is keyed by the path of a source file. Every `ray job submit` unpacks the sources into a new
directory and would compile all kernels again. Also, numba checks one file only, and would not notice a change
of a helper in another file.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config

KERNELS = Path(__file__).parent
UNUSED_AFTER_S = 30 * 24 * 3600
_NUMBA_LOCATORS = (
    "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,IPythonCacheLocator,ZipCacheLocator"
)


def install_locator() -> None:
    """Make numba cache functions of this package with ContentCacheLocator; others keep numba's locators."""
    ours = f"{ContentCacheLocator.__module__}.{ContentCacheLocator.__qualname__}"
    others = config.CACHE_LOCATOR_CLASSES or _NUMBA_LOCATORS
    if ours not in others:
        config.CACHE_LOCATOR_CLASSES = f"{ours},{others}"


@cache
def content_hash() -> str:
    """Return a hash of all source files of this package and of numba's version, as 16 hex digits."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(KERNELS.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """Return the directory that contains one `kernels-<hash>` directory per version of the kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raymq"


def remove_unused() -> None:
    """Delete the cache directories of kernel versions that no process has loaded for 30 days."""
    now = time.time()
    for directory in cache_root().glob("kernels-*"):
        if now - directory.stat().st_mtime > UNUSED_AFTER_S:
            shutil.rmtree(directory, ignore_errors=True)


class ContentCacheLocator:
    """Tells numba where to cache a kernel: in a directory named by a hash of the kernels' source files.

    Implements the locator interface of numba (see NUMBA_CACHE_LOCATOR_CLASSES).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = cache_root() / f"kernels-{content_hash()}"
        self._line = function.__code__.co_firstlineno
        self._py_file = function.__code__.co_filename  # numba prints it in warnings

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> "ContentCacheLocator | None":
        """Return a locator for `function` if it is a kernel of this package.

        Returns None for other functions, or if the cache directory is not writable; numba then tries its own
        locators.
        """
        if Path(source).parent != KERNELS:
            return None
        locator = cls(function)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None  # numba then tries its own locators
        return locator

    def ensure_cache_path(self) -> None:
        """Create the cache directory, or update its modification time, which `remove_unused` reads.

        Raises OSError if the directory is not writable.
        """
        self._path.mkdir(parents=True, exist_ok=True)
        os.utime(self._path)
        if not os.access(self._path, os.W_OK):
            raise PermissionError(f"the kernel cache directory {self._path} is not writable")

    def get_cache_path(self) -> str:
        """Return the cache directory of this version of the kernels."""
        return str(self._path)

    def get_source_stamp(self) -> str:
        """Return the hash of the sources.

        numba uses a cached kernel only if it was saved with the same value.
        """
        return content_hash()

    def get_disambiguator(self) -> str:
        """Return the line number of the kernel, which distinguishes kernels of the same name."""
        return str(self._line)
