"""TermFile: `raymq.raft`, what a replica must remember over a restart besides its log.

    {"crc": 1234567890,
     "raft": {"group": "DefaultCluster/broker-a", "member": [1, "store id"], "term": 7,
              "votedFor": [0, "store id"], "isElectable": true,
              "firstMembers": {"voters": [[0, "…"], …], "learners": [], "addresses": {"…": "host:port"}},
              "history": [{"start": 0, "term": 1, "voters": [[0, "…"], …], "learners": [],
                           "addresses": {"…": "host:port"}}, …],
              "joinOffset": 0, "historyBegin": 0, "groupId": "…"}}

`crc` is that of `checked_file.py`. A replica that has lost its term or vote could vote twice in one term, so
a damaged file is never read as an empty one: the replica stays down.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.raft.checked_file import decode_checked, encode_checked
from actors.raft.effects import SavedTerm
from actors.raft.history import GroupHistory, GroupRecord
from actors.raft.members import Member, Members
from store.disk.files import replace_file
from store.store_errors import StoreError

TERM_FILE = "raymq.raft"
_KEY = "raft"
_REMEDY = (
    "this replica could vote twice: remove its store, and replace the replica with `raymq replica replace`"
)


class TermFile:
    """The file of one replica."""

    def __init__(
        self,
        root: Path,
        group: str,
        me: Member,
        name: str = TERM_FILE,
        *,
        read: Callable[[Path], bytes] = Path.read_bytes,
        replace: Callable[[Path, bytes], None] = replace_file,
    ) -> None:
        """Create the handler of the file `name` in the store at `root`, of the replica `me` of `group`.

        `read` raises FileNotFoundError without the file; `replace` returns when the new content is durable.
        """
        self.path = root / name
        self._read, self._replace = read, replace
        self._group = group
        self._me = me

    def read(self) -> SavedTerm | None:
        """Return what was saved last, or None if nothing was saved yet.

        Raises StoreError if the file is damaged, or belongs to another group or store.
        """
        try:
            content = self._read(self.path)
        except FileNotFoundError:
            return None
        raft = decode_checked(content, _KEY, self.path, _REMEDY)
        try:
            saved = _decode(raft)
            owner = (raft["group"], Member(*raft["member"]))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"has no valid field {error} ({_REMEDY})", self.path) from error
        if owner != (self._group, self._me):
            raise StoreError(
                f"belongs to {owner[1]} of group {owner[0]!r}, but this is {self._me} of group "
                f"{self._group!r}: restore the right store, or set another store root",
                self.path,
            )
        return saved

    def write(self, saved: SavedTerm) -> None:
        """Replace the content, durably. Raises OSError."""
        raft = {
            "group": self._group,
            "member": list(self._me),
            "term": saved.term,
            "votedFor": None if saved.voted_for is None else list(saved.voted_for),
            "isElectable": saved.is_electable,
            "firstMembers": encode_members(saved.first_members),
            "history": [
                {"start": each.start, "term": each.term, **encode_members(each.members)}
                for each in saved.history
            ],
            "joinOffset": saved.join_offset,
            "historyBegin": saved.history_begin,
            "groupId": saved.group_id,
        }
        self._replace(self.path, encode_checked(_KEY, raft))


def encode_members(members: Members) -> dict[str, Any]:
    """Return the JSON form of a configuration."""
    return {
        "voters": [list(each) for each in members.voters],
        "learners": [list(each) for each in members.learners],
        "addresses": dict(members.addresses),
    }


def decode_members(fields: dict[str, Any]) -> Members:
    """Return the configuration of its JSON form. Raises KeyError, TypeError, ValueError."""
    addresses = fields.get("addresses", {})  # older files and records have none
    if not isinstance(addresses, dict) or not all(isinstance(each, str) for each in addresses.values()):
        raise TypeError(f"addresses {addresses!r}")
    return Members(_decode_each(fields["voters"]), _decode_each(fields["learners"]), tuple(addresses.items()))


def _decode_each(members: list[Any]) -> tuple[Member, ...]:
    return tuple(_decode_member(each) for each in members)


def _decode_member(member: list[Any]) -> Member:
    replica, store_id = member
    if not isinstance(replica, int) or not isinstance(store_id, str):
        raise TypeError(f"member {member!r}")
    return Member(replica, store_id)


def _decode(raft: dict[str, Any]) -> SavedTerm:
    voted_for = raft["votedFor"]
    first_members = decode_members(raft["firstMembers"])
    history = tuple(
        GroupRecord(int(each["start"]), int(each["term"]), decode_members(each)) for each in raft["history"]
    )
    GroupHistory(first_members, history)  # checks the order
    return SavedTerm(
        int(raft["term"]),
        None if voted_for is None else _decode_member(voted_for),
        bool(raft["isElectable"]),
        first_members,
        history,
        int(raft["joinOffset"]),
        int(raft.get("historyBegin", 0)),  # older files have none
        str(raft.get("groupId", "")),  # as above
    )
