"""PoppingGroups: the groups that pop topics, to find consumers that pull the same topics.

A group's pops and pulls begin at the same committed offsets. A consumer that pulls gets the messages that
others have popped, and its commits move the next pop. RocketMQ lets it happen.

    pull of a topic that the group has popped within POPPING_MS ──► warning `mixed_request_modes`
                                                                └─► refused, with `refuse_mixed_request_modes`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.broker.broker_settings import BrokerSettings
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

POPPING_MS: Final = 60_000
"""A group without a pop for this long may pull: its consumers were replaced."""
POPPED: Final = Bound("popping_groups", 10_000, AtLimit.EVICT, "Topics that groups have popped lately.")


class PoppingGroups:
    """The topics that groups of one broker have popped lately."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._popped_ns = Newest[tuple[str, str], int](POPPED)
        self._reported = Newest[tuple[str, str], None](POPPED)
        self.mixed = 0
        """Number of groups and topics that were both popped and pulled."""

    def __bool__(self) -> bool:
        return bool(self._popped_ns)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._popped_ns.use(),)

    def popped(self, topic: str, group: str) -> None:
        """Note a pop of a group."""
        self._popped_ns[topic, group] = self._clock.monotonic_ns()

    def check_pull(self, topic: str, group: str) -> None:
        """Report a pull of a topic that the group pops. Raises Refused if the settings forbid it."""
        popped_ns = self._popped_ns.get((topic, group))
        if popped_ns is None:
            return
        if self._clock.monotonic_ns() - popped_ns > POPPING_MS * NS_PER_MS:
            del self._popped_ns[topic, group]
            self._reported.pop((topic, group), None)
            return
        is_refused = self._settings.refuse_mixed_request_modes
        if (topic, group) not in self._reported:
            self._reported[topic, group] = None
            self.mixed += 1
            _log.warning(
                "mixed_request_modes", group=group, topic=topic, refused=is_refused,
                remedy="let all consumers of the group pop, or give those that pull another group",
            )  # fmt: skip
        if is_refused:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"group {group[:100]!r} pops topic {topic[:100]!r}, so it may not pull it "
                "(refuse_mixed_request_modes): pop too, or use another group",
            )
