"""Writing units to many files in one call: the same result as in pure Python, up to the first failure."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.kernels import units
from store.kernels.unit_files import write_units
from tests.store.kernels.plain_dispatch import write_units_plain

FILE_BYTES = 400
PER_FILE = FILE_BYTES // units.UNIT_BYTES
LOG = b"..Topic/\xd1\x82\xd0\xb5\xd0\xbc\xd0\xb0.."
TOPICS = [(2, 5), (8, 8)]  # position and length in LOG

groups_of_queues = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.integers(0, (1 << 31) - 1),
        st.integers(0, 1 << 40),
        st.integers(1, PER_FILE),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each[:2],
)


def a_group(topic: tuple[int, int], queue_id: int, offset: int, count: int, first_unit: int) -> list[int]:
    group = [0] * units.GROUP_FIELDS
    group[units.GROUP_TOPIC], group[units.GROUP_TOPIC_LENGTH] = topic
    group[units.GROUP_QUEUE_ID] = queue_id
    group[units.GROUP_FIRST_QUEUE_OFFSET] = offset
    group[units.GROUP_COUNT] = min(count, PER_FILE - offset % PER_FILE)
    group[units.GROUP_FIRST_UNIT] = first_unit
    return group


def make_files(root: Path, groups: list[list[int]]) -> list[Path]:
    paths = []
    for group in groups:
        start = group[units.GROUP_TOPIC]
        topic = LOG[start : start + group[units.GROUP_TOPIC_LENGTH]].decode()
        base = group[units.GROUP_FIRST_QUEUE_OFFSET] // PER_FILE * FILE_BYTES
        path = root / topic / str(group[units.GROUP_QUEUE_ID]) / f"{base:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(FILE_BYTES))
        paths.append(path)
    return paths


def write(
    root: Path,
    groups: list[list[int]],
    chosen: list[int],
    content: bytes,
    log: bytes = LOG,
    new: frozenset[int] = frozenset(),
) -> int:
    directory = os.open(root, os.O_PATH)
    try:
        is_new = np.array([number in new for number in chosen], np.bool_)
        arrays = np.frombuffer(log, np.uint8), np.array(groups), np.array(chosen, np.int64), is_new
        return int(write_units(directory, FILE_BYTES, *arrays, np.frombuffer(content, np.uint8)))
    finally:
        os.close(directory)


def some_units(groups: list[list[int]]) -> bytes:
    count = sum(group[units.GROUP_COUNT] for group in groups)
    return np.random.default_rng(7).integers(1, 256, count * units.UNIT_BYTES, np.uint8).tobytes()


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all files and directories below `root`."""
    return {
        str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


def three_queues() -> list[list[int]]:
    return [a_group(TOPICS[0], queue_id, 20 + queue_id, 2, 2 * queue_id) for queue_id in range(3)]


@pytest.fixture(params=["missing", "directory", "full disk"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Path]]:
    """Return a directory of three queues, and their files; the second file is not writable."""
    paths = make_files(tmp_path, three_queues())
    paths[1].unlink()
    if request.param == "directory":
        paths[1].mkdir()
    elif request.param == "full disk":
        paths[1].symlink_to("/dev/full")
    return tmp_path, paths


@given(groups_of_queues, st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_write_units_equals_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    queues: list[tuple[tuple[int, int], int, int, int]],
    data: st.DataObject,
) -> None:
    groups: list[list[int]] = []
    for queue in queues:
        groups.append(a_group(*queue, sum(group[units.GROUP_COUNT] for group in groups)))
    chosen = data.draw(st.lists(st.sampled_from(range(len(groups))), unique=True))
    new = frozenset(data.draw(st.lists(st.sampled_from(chosen), unique=True)) if chosen else [])
    content = some_units(groups)
    roots = tmp_path_factory.mktemp("kernel"), tmp_path_factory.mktemp("plain")
    for root in roots:
        make_files(root, [group for number, group in enumerate(groups) if number not in new])
    assert write(roots[0], groups, chosen, content, new=new) == len(chosen)
    is_new = [number in new for number in chosen]
    arrays = np.array(groups), chosen, is_new
    assert write_units_plain(roots[1], FILE_BYTES, LOG, *arrays, content) == len(chosen)
    written, expected = (tree(root) for root in roots)
    assert written == expected
    assert len(written) >= len({tuple(groups[number][:4]) for number in chosen})


def test_groups_after_a_failed_file_are_not_written(broken: tuple[Path, list[Path]]) -> None:
    root, paths = broken
    groups = three_queues()
    content = some_units(groups)
    assert write(root, groups, [0, 1, 2], content) == 1
    assert write_units_plain(root, FILE_BYTES, LOG, np.array(groups), [0, 1, 2], [False] * 3, content) == 1
    assert paths[0].read_bytes() == content[:40].ljust(FILE_BYTES, b"\0")
    assert paths[2].read_bytes() == bytes(FILE_BYTES)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    write(root, groups, [1], content)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


@pytest.mark.parametrize(
    ("topic", "queue_id"), [((2, 5), -1), ((0, 0), 1), ((7, 3), 1), ((0, 256), 1), ((0, 1 << 20), 1)]
)
def test_invalid_topic_or_queue_id_is_not_written(
    tmp_path: Path, topic: tuple[int, int], queue_id: int
) -> None:
    log = LOG.ljust((1 << 20) + 16, b"x")
    assert write(tmp_path, [a_group(topic, queue_id, 0, 1, 0)], [0], bytes(20), log) == 0
    assert list(tmp_path.iterdir()) == []


def test_file_that_cannot_be_created_is_a_failure(tmp_path: Path) -> None:
    groups = three_queues()
    (tmp_path / "Topic").mkdir()
    (tmp_path / "Topic" / "1").write_text("a file instead of a directory")
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    assert write(tmp_path, groups, [0, 1, 2], some_units(groups), new=frozenset({0, 1, 2})) == 1
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    assert (tmp_path / "Topic" / "0" / f"{FILE_BYTES:020d}").stat().st_size == FILE_BYTES
    assert not (tmp_path / "Topic" / "2").exists()
