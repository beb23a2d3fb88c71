"""Store files that are truncated, zeroed or have a flipped bit.

Derived files are rebuilt, damage in the log loses only the damaged records, and a damaged identity or epoch
file is refused by name and left unchanged.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.message.record import MAGIC_V1
from store.store_errors import StoreError
from tests.checkers import Event, Recorder, assert_consistent
from tests.faults.aftermath import check_store, read_everything
from tests.faults.scenarios import Writer, open_store

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "emptied": lambda content, rng: b"",
    "truncated": lambda content, rng: content[: rng.randrange(1, len(content))],
    "zeroed": lambda content, rng: bytes(len(content)),
    "one bit": flipped,
}
KINDS = {
    "log": "commitlog/*",
    "queue": "consumequeue/Topic/*/*",
    "index": "index/*",
    "checkpoint": "checkpoint",
    "raymq.derived": "raymq.derived",
    "raymq.json": "raymq.json",
    "raymq.epoch": "raymq.epoch",
    "lock": "lock",
    "abort": "abort",
}
DERIVED = ("queue", "index", "checkpoint", "raymq.derived", "lock", "abort")


class Sample:
    """A store with all kinds of files, once closed cleanly and once killed; copies of both get damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self._copies = 0
        root = directory / "clean"
        for _ in range(2):
            store = open_store(root)
            writer = Writer(root, store, Recorder(events=self.events))
            for number in range(30):
                writer.send(padding=number * 15)
                if number % 4 == 0:
                    writer.settle()
            writer.settle()
            shutil.rmtree(directory / "killed", ignore_errors=True)
            shutil.copytree(root, directory / "killed")
            store.close()

    def damaged(self, end: str, kind: str, damage: str, seed: int) -> tuple[Path, Path]:
        """Copy the store, damage one file, and return the directory and the file.

        Args:
            end: `clean` or `killed`.
            kind: key of `KINDS`.
            damage: key of `DAMAGES`.
            seed: selects file and position.
        """
        rng = random.Random(f"{end} {kind} {damage} {seed}")
        self._copies += 1
        root = self.directory / f"copy-{self._copies}"
        shutil.copytree(self.directory / end, root)
        paths = sorted(root.glob(KINDS[kind]))
        path = rng.choice(paths) if paths else root / KINDS[kind]
        content = path.read_bytes() if path.exists() else b"12345"
        path.write_bytes(DAMAGES[damage](content, rng))
        return root, path

    def with_flipped_record(self, end: str, seed: int) -> tuple[Path, Path]:
        """Copy the store, flip one bit of a record, and return the directory and the file.

        The bit is in a field that a check covers: sizes, magic, CRC, offsets or body.
        """
        rng = random.Random(seed)
        self._copies += 1
        root = self.directory / f"copy-{self._copies}"
        shutil.copytree(self.directory / end, root)
        places = [
            (path, place)
            for path in sorted(root.glob(KINDS["log"]))
            for place in checked_positions(path.read_bytes())
        ]
        path, place = rng.choice(places)
        content = bytearray(path.read_bytes())
        content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        return root, path


def checked_positions(log: bytes) -> Iterator[int]:
    """Yield the positions of all record bytes that a check covers: sizes, magic, CRC, offsets, body."""
    record = 0
    while int.from_bytes(log[record + 4 : record + 8], "big", signed=True) == MAGIC_V1:
        size = int.from_bytes(log[record : record + 4], "big")
        body = int.from_bytes(log[record + 84 : record + 88], "big")
        for first, stop in ((0, 12), (28, 36), (84, 88 + body)):
            yield from range(record + first, record + stop)
        record += size


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sample]:
    directory = tmp_path_factory.mktemp("damaged")
    yield Sample(directory)
    shutil.rmtree(directory)


def every(count: int, ends: tuple[str, ...] = ("clean", "killed")) -> Iterator[tuple[str, str, int]]:
    for end in ends:
        for damage in DAMAGES:
            for seed in range(count if damage in ("one bit", "truncated") else 1):
                yield end, damage, seed


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refusal(root: Path) -> str | None:
    try:
        open_store(root).close()
    except StoreError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", DERIVED)
def test_damaged_derived_file_is_rebuilt_from_the_log(sample: Sample, kind: str) -> None:
    for end, damage, seed in every(4):
        root, path = sample.damaged(end, kind, damage, seed)
        about = f"{path.relative_to(root)} {damage}, {end}, seed {seed}"
        check_store(root, about, events=sample.events, derived=True)
        shutil.rmtree(root)


def test_log_file_of_wrong_size_is_refused_and_nothing_is_changed(sample: Sample) -> None:
    for end in ("clean", "killed"):
        for seed in range(4):
            root, path = sample.damaged(end, "log", "truncated", seed)
            before = files(root)
            with pytest.raises(StoreError, match=f"{path.name}: the file has .* bytes, but"):
                open_store(root)
            left = {name: content for name, content in files(root).items() if not name.endswith("/lock")}
            assert left == {name: content for name, content in before.items() if not name.endswith("/lock")}


@pytest.mark.parametrize("kind", ["raymq.json", "raymq.epoch"])
def test_damaged_identity_or_epoch_file_is_refused_and_never_reset(sample: Sample, kind: str) -> None:
    refused = 0
    for end, damage, seed in every(5):
        root, path = sample.damaged(end, kind, damage, seed)
        before = path.read_bytes()
        about = f"{kind} {damage}, {end}, seed {seed}"
        error = refusal(root)
        if error is None:
            check_store(root, about, events=sample.events, derived=True)
        else:
            refused += 1
            assert kind in error, about
            assert path.read_bytes() == before, about
        shutil.rmtree(root)
    assert refused > 2


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("end", ["clean", "killed"])
def test_flipped_bit_in_log_loses_only_the_damaged_message(
    sample: Sample, end: str, has_checkpoint: bool
) -> None:
    for seed in range(20):
        root, path = sample.with_flipped_record(end, seed)
        if not has_checkpoint:
            (root / "raymq.derived").unlink()  # makes the start scan the whole log
        recorder = Recorder(events=list(sample.events))
        store = open_store(root)
        count = read_everything(store, recorder, "reader")
        store.close()
        about = f"{path.name}, {end}, seed {seed}"
        assert_consistent(recorder.events, about, ignore=["lost", "not_sequential"])
        assert count >= 59, f"{about}: {60 - count} of 60 messages are not served"
        shutil.rmtree(root)
