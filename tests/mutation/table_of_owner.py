"""Mistakes in what executes the effects of the core: driver, files, opening, log and store."""

from __future__ import annotations

from tests.mutation.mutant import STORE, Mutation

RAFT = "actors/broker/replication/raft"
DRIVER = f"{RAFT}/driver.py"
OPENING = f"{RAFT}/opening.py"
RENEWAL = f"{RAFT}/renewal.py"
TERM_FILE = "actors/raft/term_file.py"
BOUND_FILE = "actors/raft/bound_file.py"
RAFT_LOG = "actors/broker/replication/raft_log.py"

OF_DRIVER = (
    Mutation(
        "term and vote are not written",
        DRIVER,
        "do.SaveTerm: lambda effect: self._term_file.write(effect.saved),",
        "do.SaveTerm: lambda effect: None,",
    ),
    Mutation(
        "acknowledgements wait over the loss of the leadership",
        DRIVER,
        'self._abandon(f"this replica does not lead',
        'str(f"this replica does not lead',
    ),
    Mutation(
        "sends open before the leader has flushed what is confirmed",
        DRIVER,
        "self._opening is not None and self._log.flushed >= self._opening[1] and",
        "self._opening is not None and",
    ),
    Mutation(
        "sends are accepted before the leader has opened",
        DRIVER,
        "return self._is_running and self.node.accepts_sends and self._opening is None",
        "return self._is_running and self.node.accepts_sends",
    ),
    Mutation(
        "messages of strangers reach the core",
        DRIVER,
        "if not self.node.is_of_group(message, group_id):",
        "if False:",
    ),
    Mutation(
        "the core does not learn the id of its group",
        DRIVER,
        'if group_id not in ("", self.node.group_id) and sender == self.node.leader:',
        "if False:",
    ),
    Mutation(
        "a term of any distance is believed",
        DRIVER,
        "if message.term > self.node.term + MAX_TERMS_AHEAD:",
        "if False:",
        "tests/actors/broker/replication/raft/test_strangers_of_group.py",
    ),
    Mutation(
        "damage that recovery has found is not reported",
        DRIVER,
        "        if damage is not None:\n            self._feed(Damaged(*damage))\n",
        "",
    ),
    Mutation(
        "a flush is not reported",
        DRIVER,
        "if log.flushed != self._flushed and self._is_running:",
        "if False:",
    ),
    Mutation(
        "appended records are not reported",
        DRIVER,
        "            self._run(lambda: self.node.on(Appended(self._end), self._now()))\n",
        "",
    ),
    Mutation(
        "deleted files are not reported",
        DRIVER,
        "if log.min > self._min and self._is_running:",
        "if False:",
    ),
    Mutation(
        "a log that has records is continued at the offset of another one",
        DRIVER,
        "        if not self._log.is_new:\n",
        "        if False:\n",
    ),
    Mutation(
        "the timer is not set again",
        DRIVER,
        "            self._feed(Tick())\n        self._arm()",
        "            self._feed(Tick())",
        equivalent="each input sets the timer, and a Tick is one",
    ),
    Mutation(
        "a failed effect is ignored",
        DRIVER,
        "        except (StoreError, OSError) as error:\n            self._fail(str(error))\n",
        "        except (StoreError, OSError):\n            pass\n",
    ),
    Mutation(
        "a truncation leaves the end of the log as it was",
        DRIVER,
        "        self._end = effect.offset\n        self._flushed = min",
        "        self._flushed = min",
    ),
    Mutation(
        "a group record is not reported",
        DRIVER,
        "        self._run(lambda: self.node.on(GroupRecordAppended(record, self._end), self._now()))\n",
        "",
    ),
)

OF_FILES = (
    Mutation(
        "the vote is not written",
        TERM_FILE,
        '"votedFor": None if saved.voted_for is None else list(saved.voted_for),',
        '"votedFor": None,',
    ),
    Mutation("an older term is written", TERM_FILE, '"term": saved.term,', '"term": max(saved.term - 1, 0),'),
    Mutation(
        "electability is not written", TERM_FILE, '"isElectable": saved.is_electable,', '"isElectable": True,'
    ),
    Mutation("electability is not read", TERM_FILE, '        bool(raft["isElectable"]),', "        True,"),
    Mutation(
        "the beginning of a replaced log is not written",
        TERM_FILE,
        '"joinOffset": saved.join_offset,',
        '"joinOffset": 0,',
    ),
    Mutation(
        "the beginning of the history is not written",
        TERM_FILE,
        '"historyBegin": saved.history_begin,',
        '"historyBegin": 0,',
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the group records are not read",
        TERM_FILE,
        "        first_members,\n        history,\n",
        "        first_members,\n        (),\n",
        STORE,
    ),
    Mutation(
        "the first members are not written",
        TERM_FILE,
        '"firstMembers": encode_members(saved.first_members),',
        '"firstMembers": encode_members(Members()),',
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the id of the group is not written",
        TERM_FILE,
        '"groupId": saved.group_id,',
        '"groupId": "",',
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the term file is read without its checksum",
        "actors/raft/checked_file.py",
        'if document["crc"] != _crc(document[key]):',
        "if False:",
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the term file of another store is read",
        TERM_FILE,
        "if owner != (self._group, self._me):",
        "if False:",
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the bound of the log is lowered",
        BOUND_FILE,
        "bound = confirmed if content is None else max(confirmed, _decode(content, root / BOUND_FILE))",
        "bound = confirmed",
        "tests/actors/raft/test_files.py",
    ),
    Mutation(
        "the bound of the log is not used",
        OPENING,
        "log.state(bound)",
        "log.state(0)",
        "tests/actors/broker/replication/raft/test_opening.py",
    ),
    Mutation(
        "a replaced log is not removed at the start",
        OPENING,
        "renew_store(root, 0 if saved is None else saved.join_offset, settings.store.lock_timeout_ms)",
        "pass",
        "tests/actors/broker/replication/raft/test_renewal.py",
    ),
    Mutation(
        "derived files are kept after a repair",
        RENEWAL,
        "            remove_derived(root)\n",
        "",
        STORE,
    ),
    Mutation(
        "an unfinished end of the log is kept",
        RAFT_LOG,
        "if blank is not None:\n            self._store",
        "if False:\n            self._store",
        "tests/actors/broker/replication/test_raft_log.py",
    ),
    Mutation(
        "a store that lost its term file gets a new one",
        OPENING,
        "    if store.positions.written:\n",
        "    if False:\n",
        "tests/actors/broker/replication/raft/test_opening.py",
    ),
)

OF_LOG = (
    Mutation(
        "a fetch ends with a blank",
        RAFT_LOG,
        "            return bytes(data[:size])\n",
        "            end = [each.end for each in self.parts(offset, self.end)][:2][-1]\n"
        "            return bytes(self._store.log_bytes(offset, end - offset))\n",
        STORE,
    ),
    Mutation(
        "the store confirms what its disk does not have",
        RAFT_LOG,
        "return min(self._offset, positions.flushed)",
        "return self._offset",
        "tests/actors/broker/replication/test_raft_log.py",
    ),
    Mutation(
        "a group record begins after the blank before it",
        RAFT_LOG,
        "yield GroupRecord(part.offset if blank is None else blank, body.term, body.members)",
        "yield GroupRecord(part.offset, body.term, body.members)",
        "tests/actors/broker/replication/test_raft_log.py",
    ),
    Mutation(
        "a lost sector is taken for damage",
        RAFT_LOG,
        "if hole.position >= positions.confirmed and self._has_lost_sector(hole):",
        "if False:",
        "tests/actors/broker/replication/test_raft_log.py",
    ),
    Mutation(
        "a restart takes the whole log as confirmed",
        "store/recovery/opening.py",
        "restore_confirmed(_confirmed_before(log, checkpoint, summary))",
        "restore_confirmed(1 << 60)",
        STORE,
    ),
    Mutation(
        "a flush counts over a truncation",
        "store/commitlog/flush.py",
        "self._in_flight = None\n            self._log.dirty_directories |=",
        "self._log.dirty_directories |=",
        "tests/store/test_truncation.py",
    ),
    Mutation(
        "the ends of queues are not logged",
        f"{RAFT}/meta_log.py",
        "encode_full(rows, self._queue_ends(), ",
        "encode_full(rows, {}, ",
        STORE,
    ),
)

OF_OWNER = (*OF_DRIVER, *OF_FILES, *OF_LOG)
