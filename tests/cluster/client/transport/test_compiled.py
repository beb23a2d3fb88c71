"""Replacement of plain Python functions by compiled kernels after many messages."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from cluster.client.transport import compiled
from cluster.client.transport.compiled import CompiledLater
from tests.eventually import LIMIT_S

Function = Callable[[int], str]


def plain(number: int) -> str:
    return f"plain {number}"


@pytest.fixture(autouse=True)
def _load_after_20_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KERNELS_FROM", 20)


def test_compiled_function_replaces_plain_after_many_messages() -> None:
    may_load = threading.Event()

    def load() -> Function:
        may_load.wait(LIMIT_S)
        return lambda number: f"compiled {number}"

    function = CompiledLater(plain, load)
    function.count(19)
    assert function.loading is None
    function.count(1)
    function.count(1)
    assert function(7) == "plain 7"  # still loading
    may_load.set()
    assert function.loading is not None
    function.loading.join()
    assert function(7) == "compiled 7"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_plain_function_stays_if_loading_fails() -> None:
    def load() -> Function:
        raise ImportError("no numba here")

    function = CompiledLater(plain, load)
    function.count(20)
    assert function.loading is not None
    function.loading.join()
    assert function(7) == "plain 7"


def test_plain_function_stays_quietly_without_numba() -> None:
    def load() -> Function:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    function = CompiledLater(plain, load)
    function.count(20)  # an error of the thread would be a warning, which fails the test
    assert function.loading is not None
    function.loading.join()
    assert function(7) == "plain 7"


def test_loading_is_retried_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    function = CompiledLater(plain, lambda: lambda number: "compiled")
    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", start)
        function.count(20)
        assert function(7) == "plain 7"
    function.count(1)
    assert function.loading is not None
    function.loading.join()
    assert function(7) == "compiled"


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Make the interpreter switch threads after very few steps."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("frequent_thread_switches")
def test_concurrent_counts_load_once() -> None:
    failed: list[Exception] = []
    loads: list[int] = []

    def load() -> Function:
        loads.append(1)
        return plain

    def count(function: CompiledLater[[int], str], together: threading.Barrier) -> None:
        together.wait(LIMIT_S)
        try:
            function.count(20)
        except RuntimeError as error:
            failed.append(error)

    rounds = 100
    for _ in range(rounds):
        function, together = CompiledLater(plain, load), threading.Barrier(4)
        threads = [threading.Thread(target=count, args=(function, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert function.loading is not None
        function.loading.join()
    assert not failed
    assert len(loads) == rounds


FEW_AND_MANY_MESSAGES = """
import sys
import threading
from types import SimpleNamespace
from cluster.client.transport import compiled
from cluster.client import Message
from cluster.client.consumer import chunk_reader
from cluster.client.consumer.fetcher import Chunk
from cluster.client.producer import outbound
from cluster.client.config import ProducerConfig
from store.common.clock import SystemClock
from store.message.message_queue import MessageQueue
from store.message.record import RecordDraft, encode_record
from tests.store.kernels.plain_batch import decode_batch

record = encode_record(RecordDraft("T", 0, b"1"), 0, 0, 1, bytes(8))
fetcher = SimpleNamespace(queue=MessageQueue("T", "a", 0))

def use(count):
    factory = outbound.OutboundFactory(ProducerConfig(group="G"), SystemClock())
    body = factory.batch([Message("T", b"1", "tag")] * count).body
    assert [element.body for element in decode_batch(body)] == [b"1"] * count
    reader = chunk_reader.ChunkReader(Chunk(fetcher, 0, count, count, record * count), None)
    assert [message.body for message in reader.take_messages(count)] == [b"1"] * count

use(2)
assert "numba" not in sys.modules and "store.kernels" not in sys.modules
use(compiled.KERNELS_FROM)
for thread in threading.enumerate():
    if thread.name == "raymq-load-kernels":
        thread.join()
assert "store.kernels.messages_to_batch" in sys.modules and "store.kernels.records_to_messages" in sys.modules
use(2)
"""


def test_client_loads_numba_only_after_many_messages() -> None:
    subprocess.run([sys.executable, "-c", FEW_AND_MANY_MESSAGES], check=True)
