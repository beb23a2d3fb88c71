"""LoopThread, Backoff and the parsing of addresses."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from cluster.client.config import parse_addresses
from cluster.client.errors import ClientError, ConfigInvalid
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.loop_thread import LoopThread
from tests.eventually import LIMIT_S


def test_posted_calls_of_a_thread_run_in_order() -> None:
    thread = LoopThread("test")
    seen: list[tuple[int, int]] = []
    done = threading.Barrier(5)

    def post(number: int) -> None:
        for count in range(2_000):
            thread.post(seen.append, (number, count))
        thread.post(done.wait) if number == 0 else done.wait(LIMIT_S)

    posters = [threading.Thread(target=post, args=(number,)) for number in range(1, 5)]
    for poster in posters:
        poster.start()
    post(0)
    for poster in posters:
        poster.join(LIMIT_S)
    thread.call(lambda: None)
    for number in range(5):
        assert [count for who, count in seen if who == number] == list(range(2_000))
    thread.stop()


def test_exception_in_a_posted_call_does_not_stop_the_others() -> None:
    thread = LoopThread("test")
    thread.loop.call_soon_threadsafe(thread.loop.set_exception_handler, lambda loop, context: None)
    result: Future[int] = Future()
    gate = threading.Event()
    thread.post(gate.wait)
    thread.post(int, "no number")
    thread.post(result.set_result, 7)
    gate.set()
    assert result.result(LIMIT_S) == 7
    thread.stop()


def test_run_on_the_loop_thread_is_rejected() -> None:
    thread = LoopThread("test")

    async def wait_for_itself() -> None:
        thread.run(asyncio.sleep(0))

    with pytest.raises(ClientError, match="would deadlock"):
        thread.run(wait_for_itself())
    thread.stop()


def test_call_raises_the_error_in_the_waiting_thread() -> None:
    thread = LoopThread("test")
    with pytest.raises(ValueError, match="no number"):
        thread.call(lambda: int("no number"))
    thread.stop()


def test_backoff_doubles_to_its_limit_and_resets() -> None:
    backoff = Backoff(first_ms=100, last_ms=400, seed=1)
    delays = [backoff.next_ms() for _ in range(4)]
    for delay_ms, full_ms in zip(delays, (100, 200, 400, 400), strict=True):
        assert 0.8 * full_ms <= delay_ms <= full_ms
    backoff.reset()
    assert backoff.next_ms() <= 100


@pytest.mark.parametrize("given", ["", "host", "host:", ":9876", "host:0", "host:70000", "a:1;b"])
def test_parse_addresses_rejects_invalid_addresses(given: str) -> None:
    with pytest.raises(ConfigInvalid):
        parse_addresses(given)


def test_parse_addresses_accepts_semicolons_commas_and_lists() -> None:
    assert parse_addresses("a:1;b:2, c:3") == parse_addresses(["a:1", "b:2", "c:3"]) == ["a:1", "b:2", "c:3"]
