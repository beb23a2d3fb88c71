"""No remark to a client contains a path of the machine, whatever it sends and whatever fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import msgpack
import msgspec
import pytest
from msgspec import inspect

from actors.broker.core.capability import Capability, Feature
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.transport.client import RemotingClient
from actors.transport.request import RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused, without_paths
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import TIMEOUT_MS, Peer, run, settings_of, with_broker
from tests.actors.header_names import least_fields

Ask = Callable[[RemotingCommand], Awaitable[RemotingCommand]]

NUMBERS = ("-1", "7", "300", str(1 << 40), str((1 << 63) - 1), str(-(1 << 63)))
BODIES = (b"", b"{}", b"/etc/passwd", b"\x00\x01\x02")
GIVEN = {"topic": "T", "b": "T", "suspendTimeoutMillis": "0", "sysFlag": "0"}
FAILING = 9_001


def foreign_requests(rows: Iterable[RequestRow]) -> Iterator[RemotingCommand]:
    """Yield requests of all rows with positions that are foreign, negative or out of range."""
    for row in rows:
        least = {} if row.header_type is None else least_fields(row.header_type)
        named = {key: GIVEN.get(key, value) for key, value in least.items()}
        for body in BODIES:
            yield RemotingCommand(row.code, dict(named), body)
        for field in msgspec.structs.fields(row.header_type) if least else ():
            kind = inspect.type_info(field.type)
            kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
            if any(isinstance(each, inspect.IntType) for each in kinds):
                for number in NUMBERS:
                    yield RemotingCommand(row.code, named | {field.encode_name: number}, b"x")


async def walk(rows: Iterable[RequestRow], ask: Ask, root: Path) -> int:
    """Send all foreign requests; return how many had a remark."""
    remarks = 0
    for command in foreign_requests(list(rows)):
        response = await ask(command)
        check(response.remark, root, command)
        remarks += bool(response.remark)
    return remarks


def check(remark: str | None, root: Path, of: object) -> None:
    shown = remark or ""
    for path in (root, Path.home(), Path(__file__).parents[2], "/tmp"):
        assert str(path) not in shown, (of, shown)


def test_no_request_to_a_broker_reveals_a_path(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for number in range(3):
            await peer.send("T", b"%d" % number)
        foreign = {"producerGroup": "P", "tranStateTableOffset": "0", "commitOrRollback": "8"}
        for offset in NUMBERS:
            response = await peer.ask(RequestCode.END_TRANSACTION, {**foreign, "commitLogOffset": offset})
            assert response.code != 0
            check(response.remark, tmp_path, offset)

        async def ask(command: RemotingCommand) -> RemotingCommand:
            return await peer.client.invoke(peer.broker.address, command, TIMEOUT_MS)

        assert await walk(peer.loop.requests, ask, tmp_path) > 500

    with_broker(story, settings_of(tmp_path, max_hold_ms=1))


def test_no_request_to_nameserver_or_rebalancer_reveals_a_path(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SystemClock()
        nameserver = build_nameserver(
            NameserverSettings.model_validate({"listen_port": 0, "data_dir": tmp_path / "nameserver"}), clock
        )
        rebalancer = build_rebalancer(RebalancerSettings.model_validate({"data_dir": tmp_path / "r"}), clock)
        client = RemotingClient(clock)
        for process in (nameserver, rebalancer):
            await process.start()
            address = process.address
            remarks = await walk(
                process.server.chain.table,
                lambda command, address=address: client.invoke(address, command, TIMEOUT_MS),
                tmp_path,
            )
            assert remarks
        await client.close()
        for process in (nameserver, rebalancer):
            await process.stop()

    run(scenario)


def test_errors_inside_a_broker_reveal_no_path(tmp_path: Path) -> None:
    """Each kind of error, from handlers, tasks and actor handles; the log has the whole text."""
    file = tmp_path / "commitlog" / "00000000000000000000"
    errors: list[Exception] = [
        OSError(errno.ENOSPC, "No space left on device", str(file)),
        StoreError("no valid record", file, 7),
        Refused(ResponseCode.SYSTEM_ERROR, f"cannot remove {file}: check the disk"),
        RuntimeError(f"could not save in data_dir {tmp_path}: see {Path.home()}"),
    ]

    def fail(context: RequestContext) -> None:
        raise errors[0]

    async def fail_later(context: RequestContext) -> RemotingCommand:
        raise errors[0]

    feature = Feature(
        lambda parts: Capability(
            rows=(
                RequestRow(FAILING, fail),
                RequestRow(FAILING + 1, lambda context: context.spawn(fail_later(context))),
            )
        )
    )

    async def story(peer: Peer) -> None:
        while errors:
            for code in (FAILING, FAILING + 1):
                response = await peer.ask(code)
                assert response.code != 0
                assert response.remark
                check(response.remark, tmp_path, errors[0])
            errors.pop(0)

    with_broker(story, settings_of(tmp_path), features=[feature])


def test_store_that_refuses_appends_reveals_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled sends, ordinary ones and those of actor handles, with and after the failure."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error", str(tmp_path / "store"))

    async def story(peer: Peer) -> None:
        handle = peer.broker.handle
        await peer.send("T")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdatasync", fail)
            for _ in range(2):
                for properties in ("", "KEYS\x01k\x02"):
                    response = await peer.send("T", properties=properties)
                    assert response.code != 0
                    check(response.remark, tmp_path, response)
            for call in (handle.append, handle.read, handle.offsets):
                request = {"v": 1, "topic": "T", "queue": 0, "offset": -1, "body": b"x"}
                found = msgpack.unpackb(await call(msgpack.packb(request)))
                check(found["remark"], tmp_path, call)

    with_broker(story, settings_of(tmp_path, store={"flush": "sync"}))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/my-store/commitlog/000: no record (at byte 5)", "…/000: no record (at byte 5)"),
        ("[Errno 28] No space left: '/root'", "[Errno 28] No space left: '…'"),
        ("See https://rocketmq.apache.org/docs/06FAQ for details.", None),
        ("produce and/or consume at 3/4 of the limit of docs/security.md", None),
        ("10.0.0.1:10911/127.0.0.1:9 does not respond", None),
        ("store_root=/data/a; data_dir (/data/b/)", "store_root=…/a; data_dir (…/b)"),
        ("a / b", None),
    ],
)
def test_paths_are_cut_to_their_last_name(text: str, shown: str | None) -> None:
    assert without_paths(text) == (shown or text)
