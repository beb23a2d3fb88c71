"""Where numba keeps the compiled kernels: a directory of the user's, named by what the kernels' sources say.

numba's own locators go by the path of the source, so that every `ray job submit`, which unpacks the sources
into a new directory, would compile them again; and they look at one file only, so that a changed helper in
another would go unseen.
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
    """Let numba ask ours first; it declines every function that is not in this package."""
    ours = f"{ContentCacheLocator.__module__}.{ContentCacheLocator.__qualname__}"
    others = config.CACHE_LOCATOR_CLASSES or _NUMBA_LOCATORS
    if ours not in others:
        config.CACHE_LOCATOR_CLASSES = f"{ours},{others}"


@cache
def content_hash() -> str:
    """A short hash of all sources in this package and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(KERNELS.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """The directory that holds a `kernels-<hash>` for each version of the kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raymq"


def remove_unused() -> None:
    """Delete the kernels of versions that nobody has loaded for a month."""
    now = time.time()
    for directory in cache_root().glob("kernels-*"):
        if now - directory.stat().st_mtime > UNUSED_AFTER_S:
            shutil.rmtree(directory, ignore_errors=True)


class ContentCacheLocator:
    """A cache locator in numba's sense (NUMBA_CACHE_LOCATOR_CLASSES)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._path = cache_root() / f"kernels-{content_hash()}"
        self._line = function.__code__.co_firstlineno
        self._py_file = function.__code__.co_filename  # numba names it in warnings

    @classmethod
    def from_function(cls, function: Callable[..., Any], source: str) -> "ContentCacheLocator | None":
        """The locator for a kernel of this package; None for others, or where it cannot write."""
        if Path(source).parent != KERNELS:
            return None
        locator = cls(function)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None  # numba's own locators come next
        return locator

    def ensure_cache_path(self) -> None:
        """Make the directory, and note that it is in use. Raises OSError when it cannot be written."""
        self._path.mkdir(parents=True, exist_ok=True)
        os.utime(self._path)
        if not os.access(self._path, os.W_OK):
            raise PermissionError(f"{self._path} cannot be written")

    def get_cache_path(self) -> str:
        """The directory."""
        return str(self._path)

    def get_source_stamp(self) -> str:
        """What must be equal for a cached kernel to be used."""
        return content_hash()

    def get_disambiguator(self) -> str:
        """What tells two kernels of one name apart."""
        return str(self._line)
