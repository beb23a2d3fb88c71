"""SQL92 filters: Java consumers of both brokers, and RocketMQ's own evaluator on generated expressions."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.wire.codes import ResponseCode
from store.message.filter.operands import ExpressionInvalid
from store.message.filter.sql92 import compile_expression
from tests.compat.agent import Agent, Facts, OperationFailed
from tests.compat.build import JavaKit
from tests.compat.conftest import Names
from tests.compat.processes import Program
from tests.eventually import LIMIT_S, eventually
from tests.store.message.filter.expressions import Condition, Properties, conditions, encoded, properties

pytestmark = pytest.mark.java

SQL = "a > 10 AND region IN ('x','y')"
MATCHING = [f"{n:04}" for n in range(11, 60) if n % 3 < 2]


def send(agent: Agent, topic: str, **queue: object) -> None:
    agent.send_dispatched(
        [
            {"body": f"{n:04}", "properties": {"a": str(n), "region": "xyz"[n % 3]}, "topic": topic, **queue}
            for n in range(60)
        ]
    )


def test_push_consumer_filters_by_sql(each_client: Agent, topic: str, names: Names) -> None:
    send(each_client, topic)
    each_client.call("push_start", name=topic, group=names.group(), topic=topic, sql=SQL)
    each_client.received(topic, len(MATCHING))
    send(each_client, topic)
    received = each_client.received(topic, 2 * len(MATCHING))
    each_client.call("push_stop", name=topic)
    assert sorted(message["body"] for message in received) == sorted(2 * MATCHING)


def test_lite_pull_consumer_filters_by_sql(each_client: Agent, topic: str, names: Names) -> None:
    send(each_client, topic)
    each_client.call("lite_start", name=topic, group=names.group(), topic=topic, sql=SQL)
    polled = each_client.polled(topic, len(MATCHING))
    each_client.call("lite_stop", name=topic)
    assert sorted(message["body"] for message in polled) == MATCHING


def test_pull_with_a_sql_filter_returns_matching_messages(client: Agent, topic: str, names: Names) -> None:
    queue = client.publish_queues(topic)[0]
    send(client, **queue)
    found: list[Facts] = []

    def pull() -> bool:
        # The client refuses SQL92 itself until the response to its first heartbeat has the broker's version.
        with suppress(OperationFailed):
            found.append(client.call("pull", group=names.group(), **queue, offset=0, sql=SQL))
        return bool(found)

    eventually(pull, "the broker's version")
    pulled = found[0]
    assert (pulled["status"], [message["body"] for message in pulled["messages"]]) == ("FOUND", MATCHING[:32])
    none = client.call("pull", group=names.group(), **queue, offset=0, sql="a < 0")
    assert (none["status"], none["next"]) == ("NO_MATCHED_MSG", 60)


@pytest.mark.parametrize("sql", ["a > > 5", "a > 'x'", "NOT a IN ('x')"])
def test_consumer_with_an_invalid_sql_filter_does_not_start(
    client: Agent, topic: str, names: Names, sql: str
) -> None:
    with pytest.raises(OperationFailed) as failed:
        client.call("push_start", name=topic + sql, group=names.group(), topic=topic, sql=sql)
    assert failed.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


class Evaluator:
    """RocketMQ's filter module, running in a JVM."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._numbers = itertools.count()

    def results(self, expression: str, messages: list[dict[str, str]]) -> list[str]:
        """Return the result for each message, or ["invalid"]."""
        number = next(self._numbers)
        self._program.write_line(json.dumps({"id": number, "expression": expression, "messages": messages}))
        line = self._program.wait_for(f"@{number} ", LIMIT_S)
        found: list[str] = json.loads(line.partition(" ")[2])
        return found


@pytest.fixture(scope="module")
def evaluator(kit: JavaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evaluator]:
    home = tmp_path_factory.mktemp("evaluator")
    program = Program(kit.command("compat.FilterProgram", home=home), home / "evaluator.log")
    try:
        program.wait_for("@ready", LIMIT_S)
        yield Evaluator(program)
    finally:
        program.kill()


def our_results(expression: str, messages: list[dict[str, str]]) -> list[str]:
    """Return our results in the form of RocketMQ's. Raises ExpressionInvalid."""
    evaluate = compile_expression(expression)
    names = {True: "true", False: "false", None: "null"}
    found: list[str] = []
    for message in messages:
        try:
            found.append(names[evaluate(encoded(message))])
        except ValueError:
            found.append("fails")
    return found


def present(message: Properties) -> dict[str, str]:
    return {name: text for name, text in message.items() if text}


messages_of = st.lists(properties.map(present), min_size=1, max_size=10)
compared = settings(
    max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.extended
@compared
@given(condition=conditions, messages=messages_of)
def test_evaluation_equals_rocketmqs(
    evaluator: Evaluator, condition: Condition, messages: list[dict[str, str]]
) -> None:
    assert our_results(condition.text, messages) == evaluator.results(condition.text, messages)


TOKENS = (
    "a", "b", "'x'", "''", "'1'", "1", "5", "0", "0.0", "00", "1L", "2147483648", "9223372036854775808",
    "1.5", "5.", ".5", "1e2", "1e999", "1E-400", "TRUE", "false", "NULL", "AND", "or", "NOT", "IS", "IN",
    "BETWEEN", "CONTAINS", "STARTSWITH", "endswith", "(", ")", ",", "=", "<>", "<", "<=", ">", ">=", "+", "-",
    "--", "!", "a.b", "/* c */", "-- c\n", "$a", "_", "ü", "ſ", "\f", "\x0b",
)  # fmt: skip
_TOKEN = re.compile(r"'(?:''|[^'])*'|[<>=]+|[A-Za-z_$0-9.]+|\S")


@st.composite
def damaged_expressions(draw: st.DrawFn) -> str:
    """Return an expression with a few tokens replaced, added or removed; some stay valid."""
    tokens = _TOKEN.findall(draw(conditions).text)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(tokens)))
        removed = draw(st.integers(0, 2))
        tokens[place : place + removed] = draw(st.lists(st.sampled_from(TOKENS), max_size=3))
    return draw(st.sampled_from((" ", "  ", "\t"))).join(tokens)


@pytest.mark.extended
@compared
@given(expression=damaged_expressions(), messages=messages_of)
def test_refused_expressions_are_rocketmqs(
    evaluator: Evaluator, expression: str, messages: list[dict[str, str]]
) -> None:
    expected = evaluator.results(expression, messages)
    mistake: ExpressionInvalid | None = None
    try:
        found = our_results(expression, messages)
    except ExpressionInvalid as error:
        mistake, found = error, ["invalid"]
    if mistake is not None and expected != found:
        # RocketMQ ignores what follows a complete expression; we refuse it.
        assert mistake.reason.startswith("unexpected")
        found = our_results(expression[: mistake.position], messages)
    assert found == expected
