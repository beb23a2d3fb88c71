"""The page `docs/protocol.md`, made from the request tables of the processes and the tests that name a code.

uv run python -m tests.protocol_page > docs/protocol.md
"""

from __future__ import annotations

import ast
import asyncio
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
from actors.remoting.codes import RayMQRequestCode, RequestCode
from actors.remoting.request import RequestRow
from store.clock import SystemClock
from tests.actors.broker.brokers import settings_of

TESTS = Path(__file__).parent
HEAD = """\
# The remoting protocol: what is answered

Made from the request tables: `uv run python -m tests.protocol_page > docs/protocol.md`; a test compares.

A code that stands here without a process is answered with REQUEST_CODE_NOT_SUPPORTED (3) and a remark that
names it. "To clients" are those that a broker sends; RocketMQ's clients answer them, and so do ours where
they have something to say. The tests are those that name the code; besides, `tests/compat` runs RocketMQ's
own clients and tools, which name none, against both RocketMQ and RayMQ.
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
    """The whole page."""
    ours = section("Our own", RayMQRequestCode)
    return "\n".join([HEAD, *section("RocketMQ's requests", RequestCode), *ours])


def section(title: str, codes: type[RequestCode] | type[RayMQRequestCode]) -> Iterator[str]:
    """A heading and a row for each code."""
    yield f"## {title}\n"
    yield "| code | name | answered by | cost | tests |"
    yield "|---|---|---|---|---|"
    for code in sorted(codes):
        answering = {name: table[code] for name, table in tables().items() if code in table}
        where = [*answering, *(["to clients"] if code in TO_CLIENTS else [])]
        costs = sorted({str(entry.cost) for entry in answering.values()})
        tests = sorted(tests_by_code()[code.name]) if where else []
        yield f"| {int(code)} | {code.name} | {', '.join(where)} | {', '.join(costs)} | {', '.join(tests)} |"
    yield ""


@cache
def tables() -> Mapping[str, Mapping[int, RequestRow]]:
    """The rows of each process's table."""
    clock = SystemClock()
    return {
        "nameserver": build_nameserver(NameserverSettings(), clock).server.chain.table.rows,
        "broker": asyncio.run(broker_table()),
        "rebalancer": build_rebalancer(RebalancerSettings(data_dir=Path()), clock).server.chain.table.rows,
    }


async def broker_table() -> Mapping[int, RequestRow]:
    """The rows of a broker, started for a moment: only then has it a store."""
    with tempfile.TemporaryDirectory() as root:
        broker = BrokerService(settings_of(Path(root)), SystemClock())
        await broker.start()
        await broker.stop()
        return broker.graph.loop.requests.rows


@cache
def tests_by_code() -> Mapping[str, set[str]]:
    """The modules below tests/ that name each code: `RequestCode.NAME`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in {"RequestCode", "RayMQRequestCode"}
                and path != Path(__file__)
            ):
                found[node.attr].add(f"{path.relative_to(TESTS).with_suffix('')}")
    return found


if __name__ == "__main__":
    sys.stdout.write(page())
