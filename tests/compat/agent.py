"""Agent: runs the Java client program (java/client/Agent.java) and calls its operations."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.compat.build import JavaKit
from tests.compat.processes import Program, ProgramFailed
from tests.eventually import LIMIT_S, eventually

# The JVM runs only for minutes: no C2 compiler, serial GC, and a heap for all messages that the program
# keeps.
JVM = ("-Xmx1g", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Facts = dict[str, Any]


class OperationFailed(Exception):
    """The Java client raised an exception; `code` is RocketMQ's response code, if there was one."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Agent:
    """A JVM with RocketMQ clients of one version and one header encoding."""

    def __init__(
        self,
        kit: JavaKit,
        profile: str,
        nameserver: str,
        home: Path,
        *,
        encoding: str = "JSON",
        jvm: Sequence[str] = (),
    ) -> None:
        """Start the program. `encoding` is the header encoding of its clients: JSON or ROCKETMQ."""
        options = (*JVM, f"-Drocketmq.serialize.type={encoding}", *jvm)
        arguments = ("compat.Agent", f"namesrv={nameserver}")
        command = kit.command(*arguments, home=home, profile=profile, jvm=options)
        self._program = Program(command, home / "agent.log")
        self._numbers = itertools.count(1)
        self._program.wait_for("@ready", LIMIT_S)

    def call(self, operation: str, **fields: object) -> Any:
        """Run an operation in the program and return its result.

        Raises:
            OperationFailed: The Java client raised an exception.
        """
        number = next(self._numbers)
        self._program.write_line(json.dumps({"id": number, "op": operation, **fields}))
        line = self._program.wait_for(
            f"@{number} ", 2 * LIMIT_S
        )  # longer than any wait of the operation itself
        response = json.loads(line.partition(" ")[2])
        if "error" in response:
            raise OperationFailed(response["error"], response.get("code"))
        return response.get("ok")

    def create_topic(self, address: str, topic: str, queues: int = 4, permission: int = 6) -> None:
        self.call("create_topic", address=address, topic=topic, queues=queues, permission=permission)

    def publish_queues(self, topic: str) -> list[Facts]:
        """Return the queues of a topic; wait until the nameserver has its route."""

        def queues() -> list[Facts] | None:
            with suppress(OperationFailed):
                return self.call("publish_queues", topic=topic)
            return None

        found = eventually(queues, f"the route to {topic}")
        assert found is not None
        return found

    def send(self, messages: Sequence[Mapping[str, object]], mode: str = "sync") -> list[Facts]:
        """Send the messages one after another; return a result or an error for each."""
        results: list[Facts] = self.call("send", mode=mode, messages=list(messages))
        return results

    def send_dispatched(self, messages: Sequence[Mapping[str, object]]) -> list[Facts]:
        """Send the messages one after another, and wait until they are dispatched to the consume queues.

        A broker acknowledges a message before it dispatches it.
        """
        results = self.send(messages)
        assert all(result.get("status") == "SEND_OK" for result in results), results
        ends: dict[tuple[str, int], int] = {}
        for result in results:
            queue = (result["topic"], result["queueId"])
            ends[queue] = max(ends.get(queue, 0), result["queueOffset"] + 1)

        def are_dispatched() -> bool:
            found = {
                (topic, queue["queueId"]): queue["max"]
                for topic in {topic for topic, _ in ends}
                for queue in self.offsets(topic)
            }
            return all(found[queue] >= end for queue, end in ends.items())

        eventually(are_dispatched, "the dispatch of the sent messages")
        return results

    def offsets(self, topic: str, **fields: object) -> list[Facts]:
        offsets: list[Facts] = self.call("offsets", topic=topic, **fields)
        return offsets

    def received(self, name: str, count: int, timeout_s: float = LIMIT_S) -> list[Facts]:
        """Return the messages that push consumer `name` has received.

        Waits until there are `count` messages, at most `timeout_s`.
        """
        messages: list[Facts] = self.call(
            "push_received", name=name, count=count, timeoutMs=int(timeout_s * 1000)
        )
        return messages

    def polled(self, name: str, count: int) -> list[Facts]:
        """Poll with lite pull consumer `name` until `count` messages are received; return them."""
        messages: list[Facts] = self.call("lite_poll", name=name, count=count, timeoutMs=int(LIMIT_S * 1000))
        return messages

    def kill(self) -> None:
        """Kill the program (SIGKILL) without shutting its clients down."""
        self._program.kill()

    def close(self) -> None:
        """Shut down the clients and terminate the program."""
        if not self._program.is_running:
            return
        try:
            self.call("shutdown")
        except (OperationFailed, ProgramFailed):
            self._program.kill()
            raise
        self._program.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.kill()
