"""The names of the replicated tables: the kinds of their entries in the log of a Raft group."""

from typing import Final

TOPIC: Final = "topic"
GROUP: Final = "group"
MODE: Final = "mode"
OFFSET: Final = "offset"
ACKED: Final = "acked"
ORDER: Final = "order"
GENERATION: Final = "generation"
RESET: Final = "reset"
LOCK: Final = "lock"
DELAY: Final = "delay"
USER: Final = "user"
POLICY: Final = "policy"
DRAIN: Final = "drain"
TIMER: Final = "timer"
