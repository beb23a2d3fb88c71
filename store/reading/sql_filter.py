"""SqlFilter: accepts messages by a SQL92 expression on their properties, like RocketMQ's SqlFilter."""

from __future__ import annotations

from collections.abc import Mapping

from store.message.filter.operands import Truth
from store.message.filter.sql92 import compile_expression
from store.message.properties import encode_properties
from store.message.record import record_properties
from store.reading.message_filter import MessageFilter


class SqlFilter(MessageFilter):
    """Accepts messages for which an expression is true.

    A message is rejected if the result is false or null, or if the evaluation fails.
    """

    reads_units = False

    def __init__(self, expression: str, evaluate: Truth | None = None) -> None:
        """Compile `expression`, unless `evaluate` is the result of its `compile_steps`.

        Raises ExpressionInvalid if it is not valid.
        """
        self.expression = expression
        self._evaluate = evaluate or compile_expression(expression)

    def prefilter(self, tags_code: int | None) -> bool:
        """Return True: without the record, the properties are unknown."""
        return True

    def matches(self, record: memoryview) -> bool:
        """Return True if the expression is true for the properties of the record."""
        return self._is_true(record_properties(record, b"\x02"))

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        """Return True if the expression is true for properties that were read from a record."""
        return self._is_true(b"\x02" + encode_properties(properties))

    def _is_true(self, properties: bytes) -> bool:
        try:
            return self._evaluate(properties) is True
        except ValueError:  # a property cannot be compared as the expression requires
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and other.expression == self.expression

    def __hash__(self) -> int:
        return hash(self.expression)
