"""Mistakes in the consensus core, `actors/raft`."""

from __future__ import annotations

from tests.mutation.mutant import Mutation

ELECTION = "actors/raft/election.py"
FOLLOWING = "actors/raft/following.py"
LEADING = "actors/raft/leading.py"
NODE = "actors/raft/node.py"
STATE = "actors/raft/state.py"
MEMBERS = "actors/raft/members.py"
HISTORY = "actors/raft/history.py"

OF_ELECTIONS = (
    Mutation(
        "a vote does not compare the logs",
        ELECTION,
        "return (request.last_term, request.end) >= (state.history.last_term, state.end)",
        "return True",
    ),
    Mutation(
        "a vote compares the ends of the logs only",
        ELECTION,
        "return (request.last_term, request.end) >= (state.history.last_term, state.end)",
        "return request.end >= state.end",
    ),
    Mutation(
        "a vote compares the last terms only",
        ELECTION,
        "return (request.last_term, request.end) >= (state.history.last_term, state.end)",
        "return request.last_term >= state.history.last_term",
    ),
    Mutation(
        "a vote is not recorded",
        ELECTION,
        "            state.vote_for(request.sender)\n            self.arm(now_ms)",
        "            self.arm(now_ms)",
    ),
    Mutation(
        "a second vote is granted",
        ELECTION,
        "is_open and state.voted_for in (None, request.sender)",
        "is_open",
    ),
    Mutation(
        "a vote in a term that has a leader ends its lease",
        ELECTION,
        "is_open = request.term == state.term and state.leader is None",
        "is_open = request.term == state.term\n            state.leader = None",
    ),
    Mutation(
        "votes of older terms count",
        ELECTION,
        "            if response.asked_term == state.term:\n",
        "            if True:\n",
    ),
    Mutation("a candidate does not save its own vote", ELECTION, "        state.vote_for(state.me)\n", ""),
    Mutation(
        "half of the voters are a majority",
        MEMBERS,
        "return len(self.voters) // 2 + 1",
        "return (len(self.voters) + 1) // 2",
    ),
    Mutation(
        "one vote less than a majority elects",
        ELECTION,
        ">= members.majority",
        ">= members.majority - 1",
    ),
    Mutation(
        "the lease before a pre-vote is removed",
        ELECTION,
        "request.term > state.term and not self.has_leader(now_ms)",
        "request.term > state.term",
    ),
    Mutation(
        "the lease of a leader never ends",
        ELECTION,
        "return state.leader is not None and now_ms - self._heard_ms < state.timing.election_ms",
        "return state.leader is not None",
        equivalent="a follower forgets its leader when it calls an election itself",
    ),
    Mutation(
        "a replica that lost confirmed bytes votes",
        ELECTION,
        "is_granted and state.is_electable and",
        "is_granted and",
    ),
    Mutation(
        "a replica that lost confirmed bytes stands",
        ELECTION,
        "self._state.is_voter and self._state.is_electable and not",
        "self._state.is_voter and not",
    ),
    Mutation(
        "a replica with a damaged range stands",
        ELECTION,
        " and self._state.is_electable and not self._is_damaged()",
        " and self._state.is_electable",
    ),
    Mutation(
        "a learner stands",
        ELECTION,
        "return self._state.is_voter and self",
        "return self",
    ),
    Mutation(
        "an order to stand of an older term counts",
        ELECTION,
        "message.term == self._state.term and self._state.role is not Role.LEADER",
        "self._state.role is not Role.LEADER",
    ),
    Mutation(
        "a stranger ends a leadership that is alive",
        NODE,
        "return is_stranger and self._election.has_leader(now_ms)",
        "return False",
        "tests/actors/raft/test_strangers.py",
    ),
    Mutation(
        "a replica of another group is believed",
        NODE,
        "return state.group_id == group_id and is_leading",
        "return is_leading",
        "tests/actors/raft/test_strangers.py",
    ),
    Mutation(
        "any message of a stranger is processed",
        NODE,
        "return state.group_id == group_id and is_leading",
        "return state.group_id == group_id",
    ),
    Mutation(
        "a member that is not known yet is refused",
        NODE,
        "            return state.group_id == group_id and is_leading",
        "            return False",
        "tests/actors/raft/test_strangers.py",
    ),
    Mutation(
        "a greater term keeps the vote of the last one",
        STATE,
        "        self.term = term\n        self.voted_for = None\n",
        "        self.term = term\n",
    ),
    Mutation(
        "a message leaves before the term is saved",
        STATE,
        "        self.save_if_changed()\n        self.effects.append(SendToMember(to, message))",
        "        self.effects.append(SendToMember(to, message))",
    ),
    Mutation(
        "the loss of the leadership is not reported",
        STATE,
        "            self.effects.append(LoseLeadership(reason))\n",
        "",
    ),
    Mutation(
        "a leader that was stopped does not notice it",
        NODE,
        "if was_leader and self._leading.is_overdue(now_ms):",
        "if False:",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "a replica does not wait after it has lost the leadership",
        NODE,
        "if was_leader and self._state.role is not Role.LEADER:",
        "if False:",
        equivalent="it calls an election at once, with a pre-vote; its log is one of the longest",
    ),
)

OF_REPLICATION = (
    Mutation(
        "bytes are acknowledged before the flush",
        FOLLOWING,
        "return min(self._state.flushed, self._verified)",
        "return self._verified",
    ),
    Mutation(
        "bytes are acknowledged that were not compared",
        FOLLOWING,
        "return min(self._state.flushed, self._verified)",
        "return self._state.flushed",
        equivalent="the leader counts only what it has compared",
    ),
    Mutation(
        "bytes are counted that were not compared",
        LEADING,
        "match = min(flushed, progress.verified)",
        "match = flushed",
        equivalent="a follower acknowledges only what it has compared",
    ),
    Mutation(
        "what was compared in an older term counts",
        FOLLOWING,
        "self._verified_term, self._verified, self._acked, self._leader_confirmed = state.term, 0, 0, 0",
        "self._verified_term = state.term",
        equivalent="the leader counts only what it has compared in its term",
    ),
    Mutation(
        "what was compared counts after a truncation",
        FOLLOWING,
        "        self._verified = min(self._verified, offset)\n",
        "",
        equivalent="what is flushed falls, too, and the next records set both",
    ),
    Mutation(
        "flushed bytes count after a truncation",
        FOLLOWING,
        "        state.flushed = min(state.flushed, offset)\n",
        "",
    ),
    Mutation(
        "a truncation keeps the terms of what it removes",
        FOLLOWING,
        "        state.history.truncate_to(offset)\n",
        "",
    ),
    Mutation(
        "the response to an earlier fetch is used",
        FOLLOWING,
        "return response.request_id == self._request_id and response.sender == self._state.leader",
        "return response.sender == self._state.leader",
    ),
    Mutation(
        "a copy of a response is used while its flush is due",
        FOLLOWING,
        "            self._request_id += 1  # a copy of this response is not expected any more\n",
        "",
    ),
    Mutation(
        "responses of older terms are accepted",
        NODE,
        "        elif response.term == state.term and self._following.is_expected(response):",
        "        elif self._following.is_expected(response):",
        equivalent="the id of the request belongs to one term",
    ),
    Mutation(
        "acks of older terms count",
        NODE,
        "if ack.term == self._state.term and self._state.role is Role.LEADER:",
        "if self._state.role is Role.LEADER:",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "fetches of older terms are served",
        NODE,
        "if request.term == state.term and state.role is Role.LEADER:",
        "if state.role is Role.LEADER:",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "repairs of older terms are served",
        NODE,
        "if request.term == self._state.term and self._state.role is Role.LEADER:",
        "if self._state.role is Role.LEADER:",
        equivalent="confirmed bytes are the same in all terms",
    ),
    Mutation(
        "a notice of an older term is followed",
        NODE,
        "if notice.term < state.term:",
        "if False:",
    ),
    Mutation(
        "a replica confirms all that its leader has confirmed",
        FOLLOWING,
        "state.confirm(min(response.confirmed, self._verified))",
        "state.confirm(min(response.confirmed, UNKNOWN))",
    ),
    Mutation(
        "a replica confirms what it has, not what the leader has confirmed",
        FOLLOWING,
        "state.confirm(min(response.confirmed, self._verified))",
        "state.confirm(self._verified)",
    ),
    Mutation(
        "a fetch does not compare the terms",
        LEADING,
        "request.offset <= state.end and state.history.term_before(request.offset) == request.term_before",
        "request.offset <= state.end",
    ),
    Mutation(
        "records of an old term are confirmed by counting",
        LEADING,
        "return self._opens_at is not None and offset >= self._opens_at",
        "return True",
    ),
    Mutation(
        "one replica less than a majority confirms",
        LEADING,
        "return flushed[members.majority - 1]",
        "return flushed[max(members.majority - 2, 0)]",
    ),
    Mutation(
        "the fastest replica confirms", LEADING, "return flushed[members.majority - 1]", "return flushed[0]"
    ),
    Mutation(
        "a learner counts",
        LEADING,
        "state.flushed if each == state.me else self._progress[each].match for each in members.voters\n",
        "state.flushed if each == state.me else self._progress[each].match for each in members.everyone\n",
    ),
    Mutation(
        "the leader counts bytes that it has not flushed",
        LEADING,
        "            state.flushed if each == state.me else",
        "            state.end if each == state.me else",
    ),
    Mutation(
        "positions of an earlier leadership count",
        LEADING,
        "{each: Progress(now_ms) for each in",
        "{each: self._progress.get(each) or Progress(now_ms) for each in",
    ),
    Mutation(
        "sends open before the first record of the leader is confirmed",
        LEADING,
        "return self._state.role is Role.LEADER and self._is_open and self._transfer is None",
        "return self._state.role is Role.LEADER and self._transfer is None",
    ),
    Mutation(
        "sends stay open during a transfer",
        LEADING,
        "return self._state.role is Role.LEADER and self._is_open and self._transfer is None",
        "return self._state.role is Role.LEADER and self._is_open",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "a transfer does not wait for the log",
        LEADING,
        "if progress.match == state.end == state.confirmed:",
        "if True:",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "a leader without a majority does not resign",
        LEADING,
        "return self.active_voters(now_ms) >= self._state.members.majority",
        "return True",
    ),
    Mutation(
        "a damaged range gets bytes that are not confirmed",
        LEADING,
        "elif request.offset < request.end <= state.confirmed:",
        "elif request.offset < request.end:",
        equivalent="the damaged range of a follower is below its own confirmed end",
    ),
)

OF_MEMBERS_AND_RESTARTS = (
    Mutation(
        "members change while the last change is unconfirmed",
        LEADING,
        "return self._state.confirmed >= self._change_end",
        "return True",
    ),
    Mutation(
        "members change although no majority is up",
        LEADING,
        "if len(healthy) < members.majority:",
        "if False:",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "two voters change at once",
        MEMBERS,
        "    if add is not None and add not in members.voters:\n        return members.with_voter(add)",
        "    if add is not None and add not in members.voters:\n"
        "        return members.with_voter(add) if remove not in members.voters else "
        "members.without(remove).with_voter(add)",
    ),
    Mutation(
        "a replica that lost its disk is not removed before its successor counts",
        MEMBERS,
        "    if is_successor and remove in members.everyone:",
        "    if False:",
    ),
    Mutation(
        "electability is not saved",
        STATE,
        "self._is_dirty = self.is_electable != saved.is_electable",
        "self._is_dirty = False",
    ),
    Mutation(
        "a later change of electability is not saved",
        STATE,
        "            self.is_electable = is_electable\n            self._is_dirty = True\n",
        "            self.is_electable = is_electable\n",
    ),
    Mutation(
        "a replica that has lost confirmed bytes is electable",
        STATE,
        "self.is_electable = saved.is_electable and log.end >= confirmed",
        "self.is_electable = saved.is_electable",
    ),
    Mutation(
        "a replica is electable again after a restart",
        STATE,
        "self.is_electable = saved.is_electable and log.end >= confirmed",
        "self.is_electable = log.end >= confirmed",
    ),
    Mutation(
        "a replica counts as complete before the leader is",
        FOLLOWING,
        "return self._leader_end <= self._leader_confirmed <= self._durable()",
        "return self._leader_confirmed <= self._durable()",
    ),
    Mutation(
        "a replica counts as complete before its flush",
        FOLLOWING,
        "return self._leader_end <= self._leader_confirmed <= self._durable()",
        "return self._leader_end <= self._leader_confirmed <= self._verified",
    ),
    Mutation(
        "a replica whose unconfirmed end is damaged votes",
        FOLLOWING,
        "            state.set_electable(is_electable=False)\n            self._leader_end",
        "            self._leader_end",
    ),
    Mutation(
        "a replaced log is used after a crash",
        STATE,
        "is_joining = log.min < saved.join_offset",
        "is_joining = False",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "a log is replaced before that is saved",
        STATE,
        "        self.save_history()\n        self.effects.append(Restart(offset))",
        "        self.effects.append(Restart(offset))\n        self.save_history()",
    ),
    Mutation(
        "the confirmed group records are not saved",
        STATE,
        "            if self.history.count_before(offset) != self._final_records:\n",
        "            if False:\n",
    ),
    Mutation(
        "deleted files that a power loss brought back are used",
        STATE,
        "self.min = max(log.min, min(saved.history_begin, log.end))",
        "self.min = log.min",
        "tests/actors/raft/test_node.py",
    ),
    Mutation(
        "the saved group records are not used",
        STATE,
        "    if not known:\n",
        "    if True:\n",
    ),
    Mutation(
        "the first record of a leader is left out if its log is empty",
        HISTORY,
        "        if record.term > self.last_term:\n",
        "        if record.term > self.last_term + 1:\n",
    ),
)

OF_CORE = (*OF_ELECTIONS, *OF_REPLICATION, *OF_MEMBERS_AND_RESTARTS)
