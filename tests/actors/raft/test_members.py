from __future__ import annotations

import pytest

from actors.raft.members import Member, Members, NotAllowed, check_change, next_change

A, B, C, D = (Member(number, f"store-{number}") for number in range(4))
NEW_C = Member(2, "store-of-the-new-disk")
THREE = Members((A, B, C))


def changes(members: Members, remove: Member | None, add: Member | None) -> list[Members]:
    """Return all configurations on the way, each of which must be one step from the one before."""
    found = []
    while (change := next_change(members, remove, add)) is not None:
        check_change(members, change)
        found.append(change)
        members = change
    return found


def test_lost_disk_is_replaced_by_removing_the_old_store_first() -> None:
    path = changes(THREE, C, NEW_C)
    assert path == [Members((A, B, C), (NEW_C,)), Members((A, B), (NEW_C,)), Members((A, B, NEW_C))]


def test_other_replica_is_promoted_before_the_old_one_is_removed() -> None:
    path = changes(THREE, C, D)
    assert path == [Members((A, B, C), (D,)), Members((A, B, C, D)), Members((A, B, D))]


def test_add_and_remove_take_single_steps() -> None:
    assert changes(THREE, None, D) == [Members((A, B, C), (D,)), Members((A, B, C, D))]
    assert changes(THREE, C, None) == [Members((A, B))]
    assert changes(THREE, D, None) == []


def test_addresses_follow_the_members() -> None:
    known = THREE.with_addresses({A: "a:1", B: "b:1"})
    assert [known.address_of(each) for each in (A, B, C)] == ["a:1", "b:1", ""]
    added = known.with_learner(D).with_addresses({B: "b:2", D: "d:1", NEW_C: "x:1"})
    assert added.addresses == (("store-0", "a:1"), ("store-1", "b:2"), ("store-3", "d:1"))
    assert added.with_voter(D).without(A).addresses == (("store-1", "b:2"), ("store-3", "d:1"))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (Members((A, B, D)), "2 voters change at once"),
        (Members((A, B, C, D)), "not a learner"),
        (Members(()), "last voter"),
        (Members((A, B, C, C)), "listed twice"),
        (Members((A, B, C, NEW_C)), "one replica number"),
    ],
)
def test_unsafe_changes_are_refused_by_name(members: Members, reason: str) -> None:
    with pytest.raises(NotAllowed, match=reason):
        check_change(THREE, members)


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_majority_of_voters(voters: int, majority: int) -> None:
    assert Members(tuple(Member(number, "s") for number in range(voters))).majority == majority
