from __future__ import annotations

import pytest

from actors.raft.epoch_file import epoch_file_text
from actors.raft.history import GroupHistory, GroupRecord
from actors.raft.members import Member, Members

A, B, C, D = (Member(number, f"store-{number}") for number in range(4))
FIRST = Members((A, B, C))
WITH_LEARNER = FIRST.with_learner(D)


def history() -> GroupHistory:
    """A log that a single broker wrote up to 100; leaders of term 3 and 5; members changed at 300."""
    records = (GroupRecord(100, 3, FIRST), GroupRecord(200, 5, FIRST), GroupRecord(300, 5, WITH_LEARNER))
    return GroupHistory(FIRST, records)


@pytest.mark.parametrize(("offset", "term"), [(0, 0), (100, 0), (101, 3), (200, 3), (201, 5), (999, 5)])
def test_term_of_the_byte_before_an_offset(offset: int, term: int) -> None:
    assert history().term_before(offset) == term


@pytest.mark.parametrize(
    ("term", "found"),
    [(0, (0, 100)), (2, (0, 100)), (3, (3, 200)), (4, (3, 200)), (5, (5, 400)), (9, (5, 400))],
)
def test_closest_earlier_term_and_its_end(term: int, found: tuple[int, int]) -> None:
    assert history().last_term_up_to(term, 400) == found


def test_truncation_restores_earlier_members_and_terms() -> None:
    log = history()
    assert log.members == WITH_LEARNER
    log.truncate_to(300)
    assert (log.members, log.last_term) == (FIRST, 5)
    log.truncate_to(200)
    assert log.last_term == 3
    log.add(GroupRecord(200, 6, FIRST))
    assert log.epochs == [(3, 100), (6, 200)]


def test_records_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        history().add(GroupRecord(300, 6, FIRST))
    with pytest.raises(ValueError, match="cannot follow"):
        history().add(GroupRecord(400, 4, FIRST))


def test_history_of_a_log_without_its_first_files_begins_with_what_holds_there() -> None:
    assert [each.start for each in history().before(999, 250)] == [200, 300]
    assert [each.start for each in history().before(300, 250)] == [200]
    assert [each.start for each in history().before(999, 50)] == [100, 200, 300]


def test_epoch_file_has_rocketmqs_format() -> None:
    assert epoch_file_text([(1, 0), (2, 1648218)]) == "2\n4271976928\n1-0\n2-1648218\n"
