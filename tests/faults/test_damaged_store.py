"""Files of a store that are cut, zeroed or have a flipped bit: derived ones are mended, damage in the log
costs the damaged records only, and what names the store is refused by its name and left as it is.
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
from tests.faults.stories import Writer, open_store

pytestmark = [pytest.mark.faults, pytest.mark.slow]


def flipped(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "emptied": lambda content, rng: b"",
    "cut": lambda content, rng: content[: rng.randrange(1, len(content))],
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
    """A store with messages in all kinds of file, ended in order and not; copies of it are damaged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.events: list[Event] = []
        self._copies = 0
        root = directory / "orderly"
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
        """A copy of the store with one damaged file: root and file."""
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
        """A copy of the store with one flipped bit in what a record can be checked by: sizes, magic, CRC,
        place and body. Nothing that we look at covers the other fields.
        """
        rng = random.Random(seed)
        self._copies += 1
        root = self.directory / f"copy-{self._copies}"
        shutil.copytree(self.directory / end, root)
        places = [
            (path, place)
            for path in sorted(root.glob(KINDS["log"]))
            for place in checked_places(path.read_bytes())
        ]
        path, place = rng.choice(places)
        content = bytearray(path.read_bytes())
        content[place] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        return root, path


def checked_places(log: bytes) -> Iterator[int]:
    """The bytes of a log file's records that say how long, where and what they are."""
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


def every(count: int, ends: tuple[str, ...] = ("orderly", "killed")) -> Iterator[tuple[str, str, int]]:
    for end in ends:
        for damage in DAMAGES:
            for seed in range(count if damage in ("one bit", "cut") else 1):
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
def test_a_damaged_derived_file_is_mended_from_the_log_and_nothing_lost(sample: Sample, kind: str) -> None:
    for end, damage, seed in every(4):
        root, path = sample.damaged(end, kind, damage, seed)
        about = f"{path.relative_to(root)} {damage}, {end}, seed {seed}"
        check_store(root, about, events=sample.events, derived=True)
        shutil.rmtree(root)


def test_a_log_file_of_another_size_is_refused_by_name_and_nothing_is_changed(sample: Sample) -> None:
    for end in ("orderly", "killed"):
        for seed in range(4):
            root, path = sample.damaged(end, "log", "cut", seed)
            before = files(root)
            with pytest.raises(StoreError, match=f"{path.name}: a file of .* bytes, where"):
                open_store(root)
            left = {name: content for name, content in files(root).items() if not name.endswith("/lock")}
            assert left == {name: content for name, content in before.items() if not name.endswith("/lock")}


@pytest.mark.parametrize("kind", ["raymq.json", "raymq.epoch"])
def test_a_damaged_name_or_epoch_is_refused_by_name_or_harmless_never_reset(
    sample: Sample, kind: str
) -> None:
    refused = 0
    for end, damage, seed in every(5):
        root, path = sample.damaged(end, kind, damage, seed)
        before = path.read_bytes()
        about = f"{kind} {damage}, {end}, seed {seed}"
        told = refusal(root)
        if told is None:
            check_store(root, about, events=sample.events, derived=True)
        else:
            refused += 1
            assert kind in told, about
            assert path.read_bytes() == before, about
        shutil.rmtree(root)
    assert refused > 2


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("end", ["orderly", "killed"])
def test_a_flipped_bit_in_the_log_is_never_served_and_hides_no_other_message(
    sample: Sample, end: str, noted: bool
) -> None:
    for seed in range(20):
        root, path = sample.with_flipped_record(end, seed)
        if not noted:
            (root / "raymq.derived").unlink()  # so that all of the log is walked
        recorder = Recorder(events=list(sample.events))
        store = open_store(root)
        count = read_everything(store, recorder, "reader")
        store.close()
        about = f"{path.name}, {end}, seed {seed}"
        assert_consistent(recorder.events, about, ignore=["lost", "not_sequential"])
        assert count >= 59, f"{about}: {60 - count} of 60 messages are not served"
        shutil.rmtree(root)
