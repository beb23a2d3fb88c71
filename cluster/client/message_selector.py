"""MessageSelector: selects the messages of a subscription, by tag or by SQL92 expression.

    consumer.subscribe("orders", "paid || shipped")
    consumer.subscribe("orders", MessageSelector.by_sql("a > 10 AND region IN ('x', 'y')"))

The broker evaluates SQL92 expressions on the properties of the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.wire.bodies.groups import SubscriptionData
from cluster.client.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A filter expression and its type, like RocketMQ's MessageSelector."""

    expression: str = "*"
    type: Literal["TAG", "SQL92"] = "TAG"

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """Select messages by tag: `*` selects all, `a || b` selects the tags a and b.

        A plain string passed to `subscribe` has the same effect.
        """
        return cls(expression)

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Select messages by a SQL92 expression on their properties.

        The grammar is RocketMQ's: `=`, `<>`, `<`, `<=`, `>`, `>=`, `BETWEEN`, `IN`, `IS NULL`, `CONTAINS`,
        `STARTSWITH`, `ENDSWITH`, `AND`, `OR`, `NOT` and parentheses. Raises ConfigInvalid with the
        position of the syntax error if the expression is invalid.
        """
        # Imported here, because most clients do not need the parser.
        from store.message.filter.operands import ExpressionInvalid
        from store.message.filter.sql92 import compile_expression

        if not isinstance(expression, str):
            raise ConfigInvalid(f"the SQL92 expression is {expression!r}: give a string")
        try:
            compile_expression(expression)
        except ExpressionInvalid as error:
            raise ConfigInvalid(f"the SQL92 expression {expression[:200]!r} is invalid: {error}") from error
        return cls(expression, "SQL92")

    @property
    def tags(self) -> list[str]:
        """Return the tags of the expression, or an empty list if it selects all messages or is SQL92."""
        if self.type != "TAG":
            return []
        tags = [tag for part in self.expression.split("||") if (tag := part.strip())]
        return [] if "*" in tags else tags

    def subscription(self, topic: str) -> SubscriptionData:
        """Return this selector as the subscription to `topic` that a heartbeat contains."""
        return SubscriptionData(topic, self.expression, self.tags, expression_type=self.type)

    def __str__(self) -> str:
        return self.expression if self.type == "TAG" else f"{self.type}: {self.expression}"


ALL_MESSAGES = MessageSelector()
"""Selector of a subscription without a filter."""
