"""Compiles the kernels of the package: `python -m tests.compiled_kernels`, after each change of a kernel.

Writes `store/kernels/compiled-<hash of the sources>.tar.xz` and removes the former archive. The same sources
give the same bytes. Takes 40 s of CPU time.
"""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from store.common.kernel_cache import KERNELS, shipped_archive
from store.kernels.cache import BASELINE_CPU, BASELINE_FEATURES

COMPILE = """
from importlib import import_module
from pathlib import Path
import sys
from numba.core.annotations.type_annotations import TypeAnnotation
from numba.core.ir import Loc

def without_folder(self, filename, *others, **named):
    init(self, Path(filename).name, *others, **named)

# Paths and addresses of this machine do not belong into the archive.
init, Loc.__init__ = Loc.__init__, without_folder
TypeAnnotation.__str__ = lambda self: ""
from store.warm import load
for source in sorted(Path(sys.argv[1]).glob("[!_]*.py")):
    import_module(f"store.kernels.{source.stem}")
load()
"""


def compile_kernels(user_cache: Path) -> Path:
    """Compile all kernels for BASELINE_CPU, and return the cache directory."""
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(user_cache),
        "NUMBA_CPU_NAME": BASELINE_CPU,
        "NUMBA_CPU_FEATURES": BASELINE_FEATURES,
        "PYTHONHASHSEED": "0",
    }
    command = [sys.executable, "-c", COMPILE, str(KERNELS)]
    subprocess.run(command, env=environment, cwd=KERNELS.parents[1], check=True)
    (directory,) = (user_cache / "raymq").glob("kernels-*")
    return directory


def pack(directory: Path) -> bytes:
    """Return the index and data files of a cache directory as an archive without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for file in sorted(directory.glob("*.nb[ic]")):
            member = tarfile.TarInfo(file.name)
            member.size = file.stat().st_size
            with file.open("rb") as content:
                archive.addfile(member, content)
    return lzma.compress(packed.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Replace the archive of the package."""
    with tempfile.TemporaryDirectory() as user_cache:
        archive = pack(compile_kernels(Path(user_cache)))
    for former in KERNELS.glob("compiled-*.tar.xz"):
        former.unlink()
    shipped_archive().write_bytes(archive)
    sys.stdout.write(f"{shipped_archive().name}: {len(archive):,} bytes\n")


if __name__ == "__main__":
    main()
