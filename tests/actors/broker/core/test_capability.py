"""Features that are added to a broker: the compiled path of sends, restarts, and conflicts between features.

`tests/test_extending.py` runs a feature that uses every extension point.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.broker.core.capability import Capability, Feature
from actors.broker.core.parts import BrokerParts
from actors.broker.core.role import Role, RoleService
from actors.broker.service import BrokerService
from actors.host.figures import Figure, Kind
from actors.transport.request import Cost, Observation, RequestContext, RequestRow
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.common.clock import SystemClock
from store.dispatch.sink import DispatchSink, RecordBatch
from store.message.record import decode_record
from tests.actors.broker.brokers import Peer, run, settings_of, with_broker
from tests.actors.broker.core.sending.test_plain_sends import KEY, taken


def feature(sinks: Sequence[DispatchSink] = (), **capability: object) -> Feature:
    return Feature(
        lambda parts: Capability(**capability),  # type: ignore[arg-type]
        lambda *_: sinks,
    )


class Sends:
    """Counts the sends that pass as a step, and those that are observed; refuses them if `refuses`."""

    def __init__(self) -> None:
        self.passed = self.observed = 0
        self.refuses = False

    def step(self, context: RequestContext) -> None:
        if context.row.cost is Cost.SEND:
            self.passed += 1
            if self.refuses:
                raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the feature refuses all sends")

    def observer(self, context: RequestContext, observation: Observation) -> None:
        self.observed += context.row.cost is Cost.SEND


def counts(peer: Peer, sends: Sends) -> tuple[int, int, int]:
    return sends.passed, sends.observed, taken(peer.broker)


@pytest.mark.parametrize("point", ["steps", "observers"])
def test_a_step_or_observer_is_called_for_every_plain_send(tmp_path: Path, point: str) -> None:
    sends = Sends()
    added = feature(steps=(sends.step,)) if point == "steps" else feature(observers=(sends.observer,))

    async def story(peer: Peer) -> None:
        for _ in range(20):  # the compiled path would take some of them: see the next test
            await peer.send("Plain", properties=KEY)
        assert sends.passed + sends.observed == 20
        assert taken(peer.broker) == 0

    with_broker(story, settings_of(tmp_path), features=[added])


def test_a_feature_is_bypassed_by_plain_sends_while_the_gate_is_open(tmp_path: Path) -> None:
    sends = Sends()
    added = feature(steps=(sends.step,), observers=(sends.observer,), steps_skip_sends=True)

    async def story(peer: Peer) -> None:
        for _ in range(20):  # the compiled path takes them when it knows the queue
            await peer.send("Plain", properties=KEY)
        passed, observed, compiled = counts(peer, sends)
        assert (passed, compiled > 0) == (20 - compiled, True)
        sends.refuses = True
        gate = peer.store.gate
        gate.close("feature", "the feature refuses all sends")
        refused = await peer.send("Plain", properties=KEY)
        assert (refused.code, refused.remark) == (
            ResponseCode.SERVICE_NOT_AVAILABLE,
            "the feature refuses all sends",
        )
        assert counts(peer, sends) == (passed + 1, observed + 1, compiled)
        sends.refuses = False
        gate.open("feature")
        offsets = [(await peer.send("Plain", properties=KEY)).ext["queueOffset"] for _ in range(20)]
        assert offsets == [str(offset) for offset in range(20, 40)]
        assert taken(peer.broker) > compiled
        assert sends.passed == sends.observed == 41 - taken(peer.broker)

    with_broker(story, settings_of(tmp_path), features=[added])


class Bodies:
    """A sink that keeps the bodies of all records in memory only, so it needs all of them after a start."""

    missing_from = 0

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}

    def accept(self, batch: RecordBatch) -> None:
        for offset, record in batch.records():
            self.bodies[offset] = bytes(decode_record(record).body)

    def rewind(self, offset: int) -> None:
        self.bodies = {at: body for at, body in self.bodies.items() if at < offset}


def test_a_sink_gets_the_records_of_earlier_runs_before_the_broker_is_built(tmp_path: Path) -> None:
    async def write(peer: Peer) -> None:
        for body in (b"1", b"2"):
            await peer.send("T", body)

    with_broker(write, settings_of(tmp_path))
    sink, found = Bodies(), []

    def build(parts: BrokerParts) -> Capability:
        found.extend(sink.bodies.values())
        return Capability()

    async def story(peer: Peer) -> None:
        assert found == [b"1", b"2"]
        await peer.send("T", b"3")
        assert [each.body for each in await peer.messages("T")] == [*sink.bodies.values()]

    with_broker(story, settings_of(tmp_path), features=[Feature(build, lambda *_: (sink,))])


def test_services_of_features_run_before_the_broker_registers(tmp_path: Path) -> None:
    calls: list[str] = []

    def service(name: str) -> RoleService:
        async def start() -> None:
            calls.append(f"{name} starts")

        async def stop() -> None:
            calls.append(f"{name} stops")

        return RoleService(name, frozenset({Role.MASTER}), start, stop)

    added = [feature(services=(service("a"),)), feature(services=(service("b"),))]

    async def story(peer: Peer) -> None:
        names = [each.name for each in peer.role.services]
        assert (names[:2], names[-1]) == (["a", "b"], "registration")
        assert calls == ["a starts", "b starts"]

    with_broker(story, settings_of(tmp_path), features=added)
    assert calls == ["a starts", "b starts", "b stops", "a stops"]


PULL = 11


def respond(context: RequestContext) -> RemotingCommand:
    return RemotingCommand.response()


@pytest.mark.parametrize(
    ("added", "remark"),
    [
        (
            feature(rows=(RequestRow(PULL, respond),)),
            "request code 11 is already registered",
        ),
        (
            feature(figures=(Figure("topics", Kind.GAUGE, "", lambda: 1, "Topics."),)),
            "figure topics is declared 2 times",
        ),
    ],
    ids=["request code", "figure"],
)
def test_a_conflict_between_features_fails_the_start_and_releases_the_store(
    tmp_path: Path, added: Feature, remark: str
) -> None:
    async def write(peer: Peer) -> None:
        await peer.send("T", b"kept")

    async def start() -> None:
        with pytest.raises(ValueError, match=remark):
            await BrokerService(settings_of(tmp_path), SystemClock(), features=[added]).start()

    async def story(peer: Peer) -> None:
        assert [each.body for each in await peer.messages("T")] == [b"kept"]

    with_broker(write, settings_of(tmp_path))
    run(start)
    with_broker(story, settings_of(tmp_path))


def test_features_of_the_broker_follow_the_added_ones(tmp_path: Path) -> None:
    """A dead letter is not delayed, a transaction is not delayed, and an added interceptor sees both."""
    topics: list[str] = []

    class Topic:
        property_names = None

        def before_append(self, draft) -> None:
            topics.append(draft.record.topic)

    async def story(peer: Peer) -> None:
        await peer.send("T", properties="DELAY\x011\x02")
        await peer.send("T", properties="TRAN_MSG\x01true\x02")
        await peer.send("%RETRY%g", properties="DELAY\x011\x02", reconsume_times=99)
        assert topics == ["T", "T", "%RETRY%g"]

    with_broker(story, settings_of(tmp_path), features=[feature(interceptors=(Topic(),))])
