"""MessageSelector: selects the messages of a subscription, by tag or by SQL92 expression.

    consumer.subscribe("orders", "paid || shipped")
    consumer.subscribe("orders", MessageSelector.by_sql("a > 10 AND region IN ('x', 'y')"))

The broker evaluates SQL92 expressions on the properties of the messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.remoting.bodies.groups import SubscriptionData
from cluster.client.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """An expression and its type. Same as RocketMQ's MessageSelector."""

    expression: str = "*"
    type: Literal["TAG", "SQL92"] = "TAG"

    @classmethod
    def by_tag(cls, expression: str) -> MessageSelector:
        """Select messages by tag: `*` for all, or `tag || tag`. A plain string means the same."""
        return cls(expression)

    @classmethod
    def by_sql(cls, expression: str) -> MessageSelector:
        """Select messages by a SQL92 expression over their properties.

        The grammar is RocketMQ's: `=`, `<>`, `<`, `<=`, `>`, `>=`, `BETWEEN`, `IN`, `IS NULL`, `CONTAINS`,
        `STARTSWITH` and `ENDSWITH`, `AND`, `OR`, `NOT` and parentheses. Raises ConfigInvalid with the
        position of the mistake if the expression is invalid.
        """
        from store.filter.operands import ExpressionInvalid  # with the parser, which most clients do not need
        from store.filter.sql92 import compile_expression

        if not isinstance(expression, str):
            raise ConfigInvalid(f"the SQL92 expression is {expression!r}: give a string")
        try:
            compile_expression(expression)
        except ExpressionInvalid as error:
            raise ConfigInvalid(f"the SQL92 expression {expression[:200]!r} is invalid: {error}") from error
        return cls(expression, "SQL92")

    @property
    def tags(self) -> list[str]:
        """Return the tags of an expression such as `a || b`; an empty list means that any tag is selected."""
        if self.type != "TAG":
            return []
        tags = [tag for part in self.expression.split("||") if (tag := part.strip())]
        return [] if "*" in tags else tags

    def subscription(self, topic: str) -> SubscriptionData:
        """Return the subscription of a heartbeat to `topic`."""
        return SubscriptionData(topic, self.expression, self.tags, expression_type=self.type)

    def __str__(self) -> str:
        return self.expression if self.type == "TAG" else f"{self.type}: {self.expression}"


ALL_MESSAGES = MessageSelector()
"""Selects all messages."""
