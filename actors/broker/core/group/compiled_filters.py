"""CompiledFilters: the message filters that were compiled last or are in use, by expression."""

from __future__ import annotations

from weakref import WeakValueDictionary, finalize

from actors.bounds import AtLimit, Bound
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.sized_cache import SizedCache
from store.message.filter.operands import ExpressionInvalid
from store.reading.message_filter import MessageFilter

CACHE_BYTES = 16 * 1024 * 1024
LIVE_BYTES = Bound(
    "filter_bytes", 128 * 1024 * 1024, AtLimit.REFUSE, "Bytes of the filters of one expression type in use."
)
"""50,000 pulls may be held, each with an expression of its own."""

BYTES_PER_CHARACTER = 130
"""Estimated memory of a compiled filter: 25 to 132 bytes for each character of its expression, measured."""


class CompiledFilters:
    """Filters of one expression type; each expression is compiled once as long as its filter is in use."""

    def __init__(self, cache_bytes: int = CACHE_BYTES, live_bytes_max: int = LIVE_BYTES.limit) -> None:
        self._cache = SizedCache[str, MessageFilter | ExpressionInvalid](cache_bytes)
        self._live = WeakValueDictionary[str, MessageFilter]()
        self.live_bytes = 0
        """Estimated memory of the filters that were compiled and are not released yet."""
        self._live_bytes_max = live_bytes_max

    def get(self, expression: str) -> MessageFilter | ExpressionInvalid | None:
        """Return the filter of an expression, or its error, or None if it must be compiled."""
        return self._cache.get(expression) or self._live.get(expression)

    def put(self, expression: str, compiled: MessageFilter | ExpressionInvalid) -> None:
        """Keep a filter or an error.

        Raises Refused (SYSTEM_BUSY) if the filters in use take too much memory.
        """
        if isinstance(compiled, ExpressionInvalid):
            self._cache.put(expression, compiled, 1024 + 2 * len(expression))
            return
        size_bytes = 1024 + BYTES_PER_CHARACTER * len(expression)
        if self.live_bytes + size_bytes > self._live_bytes_max:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]the filters in use take {self.live_bytes:,} bytes, and this one takes "
                f"{size_bytes:,}, over the limit of {self._live_bytes_max:,}: use a shorter or the same "
                "expression",
            )
        self._live[expression] = compiled
        self.live_bytes += size_bytes
        finalize(compiled, self._release, size_bytes)
        self._cache.put(expression, compiled, size_bytes)

    def _release(self, size_bytes: int) -> None:
        self.live_bytes -= size_bytes
