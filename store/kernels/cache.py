"""The on-disk cache of compiled kernels: one directory per hash of the kernels' sources.

numba's own cache is keyed by the path of a source file. Every `ray job submit` unpacks the sources into a new
directory and would compile all kernels again. Also, numba checks one file only, and would not notice a change
of a helper in another file.

The package has the kernels compiled for BASELINE; a new cache directory is filled with them. numba compiles
what is not there: on another platform, with another version of numba, or if a source file was changed.
`python -m tests.compiled_kernels` makes the archive.
"""

import os
import pickle
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import binding
from numba.core import config
from numba.core.registry import cpu_target

from store.common.kernel_cache import (
    COMPLETE,
    KERNELS,
    cache_directory,
    cache_root,
    content_hash,
    shipped_archive,
)

UNUSED_AFTER_S = 30 * 24 * 3600
BASELINE_CPU = "x86-64-v3"
BASELINE_FEATURES = "+pclmul"
BASELINE = (
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "pclmul", "popcnt", "sahf", "sse3",
    "sse4.1", "sse4.2", "ssse3", "xsave",
)  # fmt: skip
"""Features of a processor that the package's compiled kernels need: Intel since 2013, AMD since 2015."""
_NUMBA_LOCATORS = (
    "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator,IPythonCacheLocator,ZipCacheLocator"
)


def install_locator() -> None:
    """Make numba cache functions of this package with ContentCacheLocator; others keep numba's locators."""
    ours = f"{ContentCacheLocator.__module__}.{ContentCacheLocator.__qualname__}"
    others = config.CACHE_LOCATOR_CLASSES or _NUMBA_LOCATORS
    if ours not in others:
        config.CACHE_LOCATOR_CLASSES = f"{ours},{others}"


def unpack_shipped() -> None:
    """Fill the cache directory with the compiled kernels of the package, if it does not exist yet."""
    directory, archive = cache_directory(), shipped_archive()
    if directory.exists() or not archive.exists() or config.CPU_NAME or config.CPU_FEATURES:
        return
    features = binding.get_host_cpu_features()
    if not all(features.get(each) for each in BASELINE):
        return
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{directory.name}-") as folder:
            unpacked = Path(folder) / "kernels"
            with tarfile.open(archive) as members:
                members.extractall(unpacked, filter="data")
            for index in unpacked.glob("*.nbi"):
                _claim(index)
            (unpacked / COMPLETE).touch()
            unpacked.rename(directory)
    except OSError:
        return  # another process was faster, or the directory is not writable


def _claim(index: Path) -> None:
    """Change the processor in an index file of numba from the archive's to that of this machine."""
    with index.open("rb") as file:
        version = pickle.load(file)
        stamp, overloads = pickle.load(file)
    target = cpu_target.target_context.codegen().magic_tuple()
    ours = {(signature, target, hashes): name for (signature, _, hashes), name in overloads.items()}
    index.write_bytes(pickle.dumps(version) + pickle.dumps((stamp, ours)))


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
        self._path = cache_directory()
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
