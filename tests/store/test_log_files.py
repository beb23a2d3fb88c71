"""Log files: one JSON object per line, rotated, with secrets masked; a full disk raises no error."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.common import logs
from store.common.logs import get_logger, log_to_file


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    names = [logs.LOGGER_NAME, "asyncio", "py.warnings"]
    before = [(list(logging.getLogger(name).handlers), logging.getLogger(name).propagate) for name in names]
    yield
    for name, (handlers, propagate) in zip(names, before, strict=True):
        logger = logging.getLogger(name)
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            with contextlib.suppress(OSError):
                handler.close()
        logger.propagate = propagate


def lines(file: Path) -> list[dict[str, Any]]:
    """Return the events of a log file, without those of connections that other tests left open."""
    events: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    return [event for event in events if not event["logger"].startswith("raymq.actors.transport")]


def test_log_file_event_is_one_json_line_with_time_level_and_logger(tmp_path: Path, capfd: Any) -> None:
    file = tmp_path / "raymq" / "broker-a-0.log"
    log_to_file(file)
    log = get_logger("actors.broker.service")
    log.info("broker_serving", broker="broker-a", path=tmp_path, port=1)
    log.debug("debug_event")
    try:
        int("two\nlines")
    except ValueError:
        log.exception("it_failed")
    first, second = lines(file)
    assert list(first) == ["time", "level", "logger", "event", "broker", "path", "port"]
    assert (first["level"], first["logger"]) == ("info", "raymq.actors.broker.service")
    assert (first["path"], first["port"]) == (str(tmp_path), 1)
    assert first["time"].endswith("Z")
    assert second["level"] == "error"
    assert second["exception"].endswith("base 10: 'two\\nlines'")
    assert capfd.readouterr() == ("", "")


def test_log_file_includes_asyncio_errors(tmp_path: Path) -> None:
    log_to_file(tmp_path / "a.log")
    logging.getLogger("asyncio").error("Task was %s", "destroyed")
    (line,) = lines(tmp_path / "a.log")
    assert (line["level"], line["logger"], line["event"]) == ("error", "asyncio", "Task was destroyed")


def test_log_file_masks_secrets_but_not_message_keys(tmp_path: Path) -> None:
    log_to_file(tmp_path / "a.log")
    ext = {"AccessKey": "ak", "Signature": "si", "topic": "T", "accounts": [{"password": "p"}, "plain"]}
    get_logger("x").warning("refused", auth_token="t", secretKey="s", keys="order-1", ext=ext)
    (line,) = lines(tmp_path / "a.log")
    assert (line["auth_token"], line["secretKey"], line["keys"]) == ("***", "***", "order-1")
    assert line["ext"] == {
        "AccessKey": "***", "Signature": "***", "topic": "T", "accounts": [{"password": "***"}, "plain"],
    }  # fmt: skip


def test_log_file_is_rotated_at_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    log_to_file(tmp_path / "a.log")
    for number in range(100):
        get_logger("x").info("event", number=number)
    kept = sorted(file.name for file in tmp_path.iterdir())
    assert kept == ["a.log", *(f"a.log.{number}" for number in range(1, logs.OLD_FILES + 1))]
    assert all(file.stat().st_size <= 1000 for file in tmp_path.iterdir())
    assert lines(tmp_path / "a.log")[-1]["number"] == 99


def test_log_file_on_a_full_disk_raises_no_error(tmp_path: Path, capfd: Any) -> None:
    log_to_file(Path("/dev/full"))
    get_logger("x").error("lost_event")
    assert capfd.readouterr() == ("", "")


def test_log_cuts_long_values_and_names_their_length(tmp_path: Path) -> None:
    log_to_file(tmp_path / "a.log")
    log = get_logger("actors.broker.core.group.clients")
    table = {f"T-{number}": "x" * 1_000_000 for number in range(1000)}
    log.warning("subscriptions_differ", group="g" * 1_000_000, before=table, bodies=[b"\x00" * 1_000_000])
    log.warning("nested", one={"2": {"3": {"4": {"5": {"6": 7}}}}})
    log.error("it_failed", exc_info=ValueError("x" * 1_000_000))
    first, second, third = lines(tmp_path / "a.log")
    assert (tmp_path / "a.log").stat().st_size < 50_000
    assert first["group"] == "g" * 500 + "… (1,000,000 characters)"
    assert first["before"]["T-0"] == "x" * 100 + "… (1,000,000 characters)"
    assert first["before"]["…"] == "980 more"
    assert "… (1,000,000 bytes)" in first["bodies"][0]
    assert second["one"] == {"2": {"3": {"4": {"5": "1 entries"}}}}
    assert "ValueError" in third["exception"]
