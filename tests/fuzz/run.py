"""Fuzz a target with atheris: `uv run --group fuzz python -m tests.fuzz.run TARGET [options of libFuzzer]`.

The fuzzer writes an input that fails to a file `crash-…` in the working directory. Move that file to
`tests/fixtures/fuzz/<target>/<name>.bin`, so that the tests check it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

# numba cannot compile instrumented functions.
KERNELS = [
    f"store.kernels.{path.stem}" for path in (Path(__file__).parents[2] / "store/kernels").glob("*.py")
]
with atheris.instrument_imports(include=["actors", "store"], exclude=KERNELS):
    from tests.fuzz.targets import TARGETS


def main(arguments: list[str]) -> None:
    """Fuzz one target until it fails or until the limits in libFuzzer's options are reached."""
    if not arguments or arguments[0] not in TARGETS:
        raise SystemExit(f"usage: python -m tests.fuzz.run {{{','.join(TARGETS)}}} [-runs=N] [-max_len=N]")
    target = TARGETS[arguments[0]]
    with tempfile.TemporaryDirectory(prefix="raymq-fuzz-") as corpus:
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / f"{number:04}").write_bytes(seed)
        atheris.Setup([sys.argv[0], corpus, *arguments[1:]], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
