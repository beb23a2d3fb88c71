"""FeatureTable: a replicated table that a feature declares (`Feature.tables`), as entries of JSON values.

It is loaded from and saved to `config/raymqFeature-<name>.json`, slaves copy it by a request of its own, and
a Raft group logs its entries. No other part of the broker knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from actors.broker.core.metadata.config_files import ConfigFiles
from actors.broker.core.table_spec import TableCopy, TableSpec
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.command import RemotingCommand
from actors.wire.targets import Action, on_cluster
from store.common.clock import Clock
from store.message.json_fields import typed
from store.message.json_text import parse_rocketmq_json
from store.metadata.pieces import content_pieces

_ENTRIES = "entries"


class FeatureTable:
    """JSON values by name; the feature changes them on its master or leader with `put`."""

    def __init__(self, name: str, code: int, *, of_topics: bool = False) -> None:
        """Create an empty table.

        Args:
            name: that of the table, as the log of a Raft group and its file have it.
            code: the request by which slaves copy it; no other feature has it.
            of_topics: the names begin with that of a topic (`topic@…`), with which they are deleted.
        """
        self._entries: dict[str, Any] = {}
        self._changes = 0
        self._file = f"raymqFeature-{name}.json"
        self._files: ConfigFiles | None = None
        self.row = RequestRow(code, self._get, None, on_cluster(Action.GET), on_slave=OnSlave.SERVED)
        """The request by which slaves copy it."""
        self.spec = TableSpec(
            name,
            lambda parts: self,
            TableCopy(code, _decode, lambda parts: self.replace_all, lambda parts: self._changes),
            is_definition=True,
            of_topics=of_topics,
        )

    def keep_in(self, files: ConfigFiles) -> None:
        """Load the saved entries, and save later changes. Raises StoreError if the file is damaged."""
        self._entries = files.load(self._file, _parse)
        files.register_large(self._file, lambda: content_pieces(self._content()))
        self._files = files

    def all(self) -> dict[str, Any]:
        """Return all entries by name."""
        return dict(self._entries)

    def get(self, name: str) -> Any:
        """Return the value of an entry; None if it does not exist."""
        return self._entries.get(name)

    def put(self, name: str, value: Any) -> None:
        """Create or replace an entry by a JSON value; with None, remove it."""
        if value is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = value
        self._note_change()

    def version(self) -> int:
        """Return the number of changes."""
        return self._changes

    def replace_all(self, entries: Mapping[str, Any]) -> None:
        """Replace all entries."""
        if entries != self._entries:
            self._entries = dict(entries)
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        if self._files is not None:
            self._files.mark_changed(self._file)

    def _content(self) -> dict[str, Any]:
        return {_ENTRIES: self.all()}

    def _get(self, context: RequestContext) -> RemotingCommand:
        return RemotingCommand.response(body=orjson.dumps(self._content()))


def _parse(content: Mapping[str, Any]) -> dict[str, Any]:
    return typed(content.get(_ENTRIES, None if content else {}), dict[str, Any], _ENTRIES)


def _decode(body: bytes, clock: Clock) -> dict[str, Any]:
    content = parse_rocketmq_json(body)
    if not content:
        raise ValueError("entries is missing")
    return _parse(content)
