"""Raft over the CommitLog: leader election, log replication and membership of one broker group, sans I/O.

node.py          RaftNode: on(message, now_ms) -> effects; one object per replica
election.py      pre-vote, vote, candidacy
leading.py       the leader: serves fetches, counts flushed positions, confirms; member changes
following.py     the follower: fetches, truncates what diverged, acknowledges what is flushed
state.py         what the three share
history.py       terms and members by log position, derived from the group records in the log
members.py       voters and learners, and the rules of a change
messages.py      what replicas send each other
effects.py       what the owner of a node must do
term_file.py     raymq.raft: term, vote and electability on disk
conversion.py    the store of a single broker becomes a member, and that of a single broker again
group_record.py  the body of a group record
epoch_file.py    epochFileCheckpoint: RocketMQ's view of the terms, an export
"""
