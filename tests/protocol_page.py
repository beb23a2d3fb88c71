"""Generates `docs/protocol.md` from the request tables of the processes and the tests that use each code.

uv run python -m tests.protocol_page > docs/protocol.md
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.rebalancer.rebalancer_settings import RebalancerSettings
from actors.rebalancer.service import build_rebalancer
from actors.transport.request import RequestRow
from actors.wire.codes import RayMQRequestCode, RequestCode
from store.common.clock import SystemClock
from tests.actors.broker.brokers import settings_of

TESTS = Path(__file__).parent
# Not `tests.sources.parsed`, which takes longer than all the rest.
CODE = re.compile(r"(?<![\w.])(?:RayMQ)?RequestCode\.([A-Z]\w*)")
HEAD = """\
# The remoting protocol: supported request codes

Generated from the request tables; update it with `uv run python -m tests.protocol_page > docs/protocol.md`.

The column "handled by" names the processes that handle a request. If it is empty, the response is
REQUEST_CODE_NOT_SUPPORTED (3) with a remark that names the code. "clients" marks requests that brokers send
to clients. The column "tests" lists the tests that use the code by name. In addition, `tests/compat` runs
RocketMQ's clients and tools against RocketMQ and RayMQ.
"""
TO_CLIENTS = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)


def page() -> str:
    """Return the page as Markdown."""
    ours = section("RayMQ's requests", RayMQRequestCode)
    return "\n".join([HEAD, *section("RocketMQ's requests", RequestCode), *ours])


def section(title: str, codes: type[RequestCode] | type[RayMQRequestCode]) -> Iterator[str]:
    """Yield the lines of a section: a heading and a table with one row per code."""
    yield f"## {title}\n"
    yield "| code | name | handled by | cost | tests |"
    yield "|---|---|---|---|---|"
    for code in sorted(codes):
        handling = {name: table[code] for name, table in tables().items() if code in table}
        where = [*handling, *(["clients"] if code in TO_CLIENTS else [])]
        costs = sorted({str(entry.cost) for entry in handling.values()})
        tests = sorted(tests_by_code()[code.name]) if where else []
        yield f"| {int(code)} | {code.name} | {', '.join(where)} | {', '.join(costs)} | {', '.join(tests)} |"
    yield ""


@cache
def tables() -> Mapping[str, Mapping[int, RequestRow]]:
    """Return the request rows of each process by request code."""
    clock = SystemClock()
    return {
        "nameserver": build_nameserver(NameserverSettings(), clock).server.chain.table.rows,
        "broker": asyncio.run(broker_table()),
        "rebalancer": build_rebalancer(RebalancerSettings(data_dir=Path()), clock).server.chain.table.rows,
    }


async def broker_table() -> Mapping[int, RequestRow]:
    """Return the request rows of a broker, which must be started because they need its store."""
    with tempfile.TemporaryDirectory() as root:
        broker = BrokerService(settings_of(Path(root)), SystemClock())
        await broker.start()
        await broker.stop()
        return broker.graph.loop.requests.rows


@cache
def tests_by_code() -> Mapping[str, set[str]]:
    """Return the test modules that use each code as `RequestCode.NAME` or `RayMQRequestCode.NAME`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            for name in CODE.findall(path.read_text()):
                found[name].add(f"{path.relative_to(TESTS).with_suffix('')}")
    return found


if __name__ == "__main__":
    sys.stdout.write(page())
