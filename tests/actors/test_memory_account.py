"""The account of memory: counts, shares of networks and connections, waiting and pushing out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.memory_account import SMALL_BYTES, MemoryAccount, Share, network_of

LIMIT = 16 * SMALL_BYTES
LARGE = 2 * SMALL_BYTES


class Peer:
    """A connection whose requests can be pushed out."""

    def __init__(self, account: MemoryAccount, host: str) -> None:
        self.share: Share = account.share(host, self._push_out)
        self.taken: list[int] = []
        self.added: list[int] = []
        self.waiting: list[Callable[[], None]] = []
        self.pushed_out = 0

    def _push_out(self, is_over: bool) -> bool:
        if not (self.taken or self.added):
            return False
        self.pushed_out += 1
        largest = max(self.taken + self.added)  # as connections do
        if largest in self.taken:
            self.taken.remove(largest)
            self.share.give(largest)
        else:
            self.added.remove(largest)
            self.share.add(-largest)
        return True

    def take(self, size: int) -> bool:
        def granted() -> None:
            self.waiting.remove(granted)
            self.taken.append(size)

        if self.share.take(size, granted):
            self.taken.append(size)
            return True
        self.waiting.append(granted)
        return False

    def add(self, size: int) -> None:
        self.added.append(size)
        self.share.add(size)


def test_large_requests_wait_until_others_release() -> None:
    account = MemoryAccount(LIMIT)
    first, second = Peer(account, "10.0.0.1"), Peer(account, "10.0.0.2")
    assert first.take(LIMIT // 2)
    assert not second.take(LIMIT // 2)  # it would hold as much as the first
    assert (first.pushed_out, account.waiting) == (0, 1)
    first.share.give(first.taken.pop())
    assert (second.taken, account.waiting) == ([LIMIT // 2], 0)


def test_one_request_of_any_size_is_granted() -> None:
    account = MemoryAccount(LIMIT)
    peers = [Peer(account, f"10.0.0.{n}") for n in range(20)]
    for peer in peers:
        peer.add(SMALL_BYTES * 7 // 10)
    assert [peer.take(LIMIT) for peer in peers[:2]] == [True, False]
    peers[0].share.close()
    assert peers[1].taken == [LIMIT]


def test_small_requests_find_room_beside_waiting_large_ones() -> None:
    account = MemoryAccount(LIMIT)
    large, small = Peer(account, "10.0.0.1"), Peer(account, "10.0.0.1")
    while large.take(LARGE):
        pass
    assert small.take(SMALL_BYTES)
    small.add(SMALL_BYTES)
    assert (large.pushed_out, small.pushed_out) == (0, 0)


@pytest.mark.parametrize("hosts", [1, 2, 13, 60])
def test_peers_that_fill_the_account_give_way_to_others(hosts: int) -> None:
    account = MemoryAccount(LIMIT)
    hogs = [Peer(account, f"10.0.0.{n}") for n in range(hosts)]
    for hog in hogs:
        for _ in range(40):
            hog.add(SMALL_BYTES)
    for host in ("10.0.0.0", "10.1.1.1"):  # also one with the address of a hog
        good = Peer(account, host)
        good.add(SMALL_BYTES // 8)
        assert good.pushed_out == 0
        assert account.used_bytes <= LIMIT
        good.share.close()


def test_connections_that_hold_as_much_do_not_push_out_each_other() -> None:
    account = MemoryAccount(LIMIT)
    peers = [Peer(account, "10.0.0.1") for _ in range(40)]
    for peer in peers:
        peer.take(LARGE)
    assert sum(peer.pushed_out for peer in peers) == 0
    while account.waiting:  # all of them have their turn
        done = next(peer for peer in peers if peer.taken)
        done.share.give(done.taken.pop())
    assert account.used_bytes == sum(peer.share.size_bytes for peer in peers)


def test_room_goes_first_to_those_that_hold_the_least() -> None:
    account = MemoryAccount(LIMIT)
    hog, other = Peer(account, "10.0.0.1"), Peer(account, "10.0.0.2")
    while hog.take(LARGE):
        pass
    assert not other.take(LARGE)
    hog.share.give(hog.taken.pop())
    assert (other.taken, len(hog.waiting)) == ([LARGE], 1)


def test_stalled_requests_give_way_to_those_that_wait() -> None:
    account = MemoryAccount(LIMIT)
    hog, other = Peer(account, "10.0.0.1"), Peer(account, "10.0.0.2")
    while hog.take(LARGE):
        pass
    assert not other.take(LARGE)
    account.grant(is_pressing=True)
    assert (other.taken, hog.pushed_out) == ([LARGE], 1)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("actor-handles", "actor-handles"),
    ],
)
def test_ipv6_addresses_share_their_network(host: str, network: str) -> None:
    assert network_of(host) == network


class AccountMachine(RuleBasedStateMachine):
    """Any order of calls: the sums are right, and nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.account = MemoryAccount(LIMIT)
        self.peers: list[Peer] = []

    @rule(host=st.integers(0, 3))
    def connect(self, host: int) -> None:
        self.peers.append(Peer(self.account, f"10.0.0.{host}"))

    @rule(at=st.integers(0, 99), size=st.integers(1, LIMIT))
    def add(self, at: int, size: int) -> None:
        if self.peers:
            self.peers[at % len(self.peers)].add(size)

    @rule(at=st.integers(0, 99), size=st.integers(1, LIMIT))
    def take(self, at: int, size: int) -> None:
        if self.peers:
            self.peers[at % len(self.peers)].take(size)

    @rule(at=st.integers(0, 99))
    def release(self, at: int) -> None:
        if self.peers:
            peer = self.peers[at % len(self.peers)]
            if peer.taken:
                peer.share.give(peer.taken.pop())
            elif peer.added:
                peer.share.add(-peer.added.pop())

    @rule(at=st.integers(0, 99))
    def withdraw(self, at: int) -> None:
        if self.peers:
            peer = self.peers[at % len(self.peers)]
            if peer.waiting:
                peer.share.withdraw(peer.waiting.pop())

    @rule(at=st.integers(0, 99))
    def close(self, at: int) -> None:
        if self.peers:
            self.peers.pop(at % len(self.peers)).share.close()

    @rule()
    def press(self) -> None:
        self.account.grant(is_pressing=True)

    @invariant()
    def sums_are_right(self) -> None:
        sizes = [sum(peer.taken) + sum(peer.added) for peer in self.peers]
        assert [peer.share.size_bytes for peer in self.peers] == sizes
        assert self.account.used_bytes == sum(sizes)
        assert self.account.taken_bytes == sum(sum(peer.taken) for peer in self.peers)

    @invariant()
    def limit_is_kept(self) -> None:
        # One request may be larger than the limit, and small ones always find room.
        sizes = [size for peer in self.peers for size in (*peer.taken, *peer.added)]
        small = sum(size for peer in self.peers for size in peer.taken if size <= SMALL_BYTES)
        assert self.account.used_bytes - small <= LIMIT + max(sizes, default=0)

    @invariant()
    def one_that_waits_alone_is_granted(self) -> None:
        assert not self.account.waiting or self.account.taken_bytes


TestAccount = AccountMachine.TestCase
TestAccount.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
