"""`raymq replica recover-group`: one store becomes the only member of a group that lost its majority."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors.broker.broker_settings import BrokerSettings
from actors.raft.bound_file import write_bound
from actors.raft.effects import AppendGroupRecord
from actors.raft.node import Tick
from actors.raft.term_file import TERM_FILE
from cluster.cli.main import build
from cluster.group_recovery import TERM_STEP
from store.message.record import RecordDraft
from tests.actors.broker.brokers import run
from tests.actors.broker.replication.raft.groups import Group
from tests.actors.broker.replication.raft.test_group import bodies
from tests.actors.broker.replication.raft.test_renewal import join_at, made, opened
from tests.cluster.cli.test_replica_members import raymq
from tests.eventually import eventually_async

__all__ = ["made"]  # a fixture


def recover(root: Path, *options: str) -> tuple[int, str, str]:
    words = ["replica", "recover-group", str(root), *options]
    done = CliRunner().invoke(build(words), words)
    return done.exit_code, done.stdout, done.stderr


def test_store_becomes_the_only_member_and_leads_with_a_greater_term(made: BrokerSettings) -> None:
    replica = opened(made)
    confirmed = replica.log.end
    replica.store.append(RecordDraft("T", 0, b"perhaps acknowledged"))
    replica.store.flush_now()
    end = replica.log.end
    replica.store.close()
    write_bound(made.store_root, end + 100)  # it has lost what it had confirmed
    code, out, errors = recover(made.store_root, "--dry-run")
    assert (code, errors) == (0, "")
    facts = json.loads(out)
    assert (facts["voters"], facts["missingBytes"], facts["logEnd"]) == ([0, 1, 2], 100, end)
    assert facts["confirmed"] >= confirmed
    replica = opened(made)
    assert len(replica.node.members.voters) == 3
    assert not replica.node.is_electable
    term, groups = replica.node.term, {replica.node.group_id}
    replica.store.close()

    for times in (1, 2):  # an interrupted command is run again
        code, out, errors = recover(made.store_root, "--yes")
        assert (code, errors, json.loads(out)["done"]) == (0, "", True)
        replica = opened(made)
        assert replica.node.members.voters == (replica.node.me,)
        assert replica.node.is_electable
        assert replica.node.term == term + TERM_STEP * times
        groups.add(replica.node.group_id)
        assert len(groups) == 1 + times  # the other members of the old group are strangers
        effects = replica.node.on(Tick(), replica.node.deadline_ms)
        assert any(isinstance(each, AppendGroupRecord) for each in effects)
        replica.store.close()


def test_loss_is_stated_and_nothing_happens_without_consent(
    made: BrokerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    words = ["replica", "recover-group", str(made.store_root)]
    assert "confirm with --yes" in CliRunner().invoke(build(words), words).stderr
    monkeypatch.setattr("cluster.cli.console.is_interactive", lambda: True)
    done = CliRunner().invoke(build(words), words, input="n\n")
    assert done.exit_code != 0
    assert "lost for good" in done.stdout
    replica = opened(made)
    assert len(replica.node.members.voters) == 3
    replica.store.close()


def test_store_that_cannot_lead_is_refused_by_name(made: BrokerSettings, tmp_path: Path) -> None:
    root = made.store_root
    replica = opened(made)
    assert "already open" in recover(root, "--yes")[2]
    replica.store.close()
    assert "not the store of a replica" in recover(tmp_path, "--yes")[2]
    join_at(made, 1 << 40)
    before = sorted(root.rglob("*"))
    code, _, errors = recover(root, "--yes")
    assert code == 2
    assert "is being replaced by that of its leader" in errors
    assert sorted(root.rglob("*")) == before
    (root / TERM_FILE).write_bytes(b"{")
    assert "is damaged" in recover(root, "--yes")[2]


@pytest.mark.extended
def test_group_continues_with_one_store_and_gets_new_members(tmp_path: Path) -> None:
    async def story() -> None:
        async with Group(tmp_path) as group:
            leader = await group.send(b"kept")
            left = (leader + 1) % 3
            await eventually_async(
                lambda: group.figure(left, "confirmed") == group.figure(leader, "confirmed")
            )
            for each in range(3):
                await group.stop(each)
            code, _, errors = await asyncio.to_thread(recover, group.root(left), "--yes")
            assert (code, errors) == (0, "")
            await group.start(left)
            assert await group.send(b"alone", [left]) == left
            for number in (3, 4):
                await group.start_new(number)
                address = group.peers[number].broker.address
                code, _, errors = await raymq(group, "add", "broker-a", address, "--yes")
                assert (code, errors) == (0, "")
            last = await group.send(b"three", group.peers)
            assert list(dict.fromkeys(await bodies(group, last))) == [b"kept", b"alone", b"three"]

    run(story)
