"""Config files: `delayOffset.json` and `consumerFilter.json` are loaded and saved with a backup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.broker.core.metadata.config_files import ConfigFiles
from actors.wire.codes import RequestCode
from store.message.json_text import parse_rocketmq_json
from store.metadata.pieces import content_pieces
from tests.actors.broker.brokers import HOLD_MS, Peer, run, settings_of, with_broker
from tests.store.metadata.test_metadata import FILTERS

DELAYS = (
    b'{\n\t"dataVersion":{\n\t\t"counter":7,\n\t\t"stateVersion":0,\n\t\t"timestamp":1795228792745\n\t},\n'
    b'\t"newer":[1],\n\t"offsetTable":{1:0,2:15,14:0\n\t}\n}'
)


def config_of(root: Path) -> Path:
    config = root / "store" / "config"
    config.mkdir(parents=True, exist_ok=True)
    return config


def read(path: Path) -> dict[str, Any]:
    return parse_rocketmq_json(path.read_bytes())


def test_delay_offsets_are_loaded_and_saved_with_unknown_fields(tmp_path: Path, clock) -> None:
    path = config_of(tmp_path) / "delayOffset.json"
    path.write_bytes(DELAYS)

    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        clock.advance(1_000)
        assert (await peer.pull("T", wait_ms=HOLD_MS)).body

    with_broker(story, settings_of(tmp_path), clock)
    before = parse_rocketmq_json(DELAYS)
    assert read(path) == {**before, "offsetTable": {"1": 1, "2": 15, "14": 0}}
    assert path.with_name("delayOffset.json.bak").read_bytes() == DELAYS


def test_consumer_filters_are_kept_until_their_group_is_deleted(tmp_path: Path) -> None:
    path = config_of(tmp_path) / "consumerFilter.json"
    content = json.dumps(FILTERS, indent=1)
    path.write_text(content)

    async def send_only(peer: Peer) -> None:
        await peer.send("T")

    async def delete(peer: Peer) -> None:
        await peer.heartbeat("c", "g", T="*")
        assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})).code == 0

    with_broker(send_only, settings_of(tmp_path))
    assert path.read_text() == content
    with_broker(delete, settings_of(tmp_path))
    assert read(path) == {
        "filterDataByTopic": {"T": {"groupFilterData": {}, "topic": "T", "newer": 1}},
        "newer": {"x": 1},
    }
    assert path.with_name("consumerFilter.json.bak").read_text() == content


def test_cancelled_save_finishes_before_the_next_one(tmp_path: Path) -> None:
    """A broker that stops cancels its periodic save and saves once more."""
    started, steps = asyncio.Event(), list[str]()

    def pieces() -> Iterator[bytes]:
        started.set()
        steps.append("started")
        yield b'{"a": '
        yield b"1}"
        steps.append("encoded")

    async def story() -> None:
        files = ConfigFiles(tmp_path)
        files.register_large("table.json", pieces)
        files.mark_changed("table.json")
        periodic = asyncio.create_task(files.save_changed())
        await started.wait()
        periodic.cancel()
        await files.save_changed()
        assert steps == ["started", "encoded"]
        assert read(tmp_path / "config" / "table.json") == {"a": 1}
        assert periodic.cancelled()

    run(story)


def test_failed_save_is_repeated(tmp_path: Path) -> None:
    contents: list[dict[str, Any]] = [{"a": {1, 2}}, {"a": 1}]  # the first one cannot be encoded as JSON

    async def story() -> None:
        files = ConfigFiles(tmp_path)
        files.register_large("table.json", lambda: content_pieces(contents.pop(0)))
        files.mark_changed("table.json")
        with pytest.raises(TypeError):
            await files.save_changed()
        await files.save_changed()
        assert read(tmp_path / "config" / "table.json") == {"a": 1}

    run(story)
