"""LakeTable: the Iceberg table of one topic, to which each message is added exactly once.

    Parquet files written ──► one commit: + files, + offsets reached ──► snapshot
                              │ only if the current snapshot is the one that the round began with

Properties of the snapshots that RayMQ commits:

    raymq.offsets   {"broker-a": {"0": 1000}}: the first offset of each queue that is not in the table
    raymq.gaps      [{"broker": "broker-a", "queue": 0, "begin": 0, "end": 12}]: deleted before they were read
    raymq.epochs    {"broker-a": ["10.0.0.7:10911", "198c2f5e1a0-9f3b22c1"]}: which past of its log was read
    raymq.commit    id of the commit, by which its outcome is found if the catalog did not respond

A snapshot of another tool has none of them: then the state is that of the newest snapshot before it that has
them. They are also properties of the table, with the sequence number of their snapshot as `raymq.sequence`,
because other tools may expire that snapshot.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ResolveError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_files_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from jobs.job_errors import CommitConflict, LakeInvalid, LakeUnavailable, OptionInvalid
from jobs.lake.bodies import REASON, LakeBodies
from jobs.lake.catalogs import ERRORS_SUFFIX, lake_errors, table_name
from jobs.reading.table_files import TABLE_COLUMNS
from store.message.message_queue import MessageQueue

TOPIC, ERRORS_OF = "raymq.topic", "raymq.errors-of"
BODIES = "raymq.bodies"
OFFSETS, GAPS, EPOCHS = "raymq.offsets", "raymq.gaps", "raymq.epochs"
COMMIT, SEQUENCE = "raymq.commit", "raymq.sequence"

STORE_TIME, BODY = "store_time", "body"
_SCHEMA = Schema(
    NestedField(1, "broker", StringType()),
    NestedField(2, "queue", IntegerType()),
    NestedField(3, "offset", LongType()),
    NestedField(4, "commit_log_offset", LongType()),
    NestedField(5, STORE_TIME, TimestamptzType()),
    NestedField(6, "born_time", TimestamptzType()),
    NestedField(7, "tags", StringType()),
    NestedField(8, "keys", StringType()),
    NestedField(9, "reconsume_times", IntegerType()),
    NestedField(10, "properties", MapType(11, StringType(), 12, StringType(), value_required=False)),
)
"""The columns of each message. The body, or the decoded columns, follow."""
_BY_DAY = PartitionSpec(PartitionField(5, 1000, DayTransform(), f"{STORE_TIME}_day"))
READ_COLUMNS = {column: name for name, column in TABLE_COLUMNS.items()}
"""Column of the table → column of `read_queue` (`jobs.reading.schema`)."""

NO_RETRIES = {"commit.retry.num-retries": "0"}
"""PyIceberg would repeat a refused commit on the new snapshot, and add the rows of two writers."""
_PROPERTIES = {
    **NO_RETRIES,
    "write.parquet.compression-codec": "zstd",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.metrics.column.properties.key": "none",
    "write.metadata.metrics.column.properties.value": "none",
}
_BODY = NestedField(13, BODY, BinaryType()), {"write.metadata.metrics.column.body": "none"}
"""The column of the body and its property: a minimum of bodies is of no use, and large. Iceberg's own REST
server refuses the property for a table without the column.
"""
_REFUSED = (CommitFailedException, ValidationException)
"""The errors after which the commit is certainly not in the table."""


class LakeGap(NamedTuple):
    """Offsets [begin, end) of a queue whose messages were deleted before they were written to the table."""

    broker: str
    queue: int
    begin: int
    end: int


@dataclass(frozen=True)
class LakeState:
    """What a table contains.

    Attributes:
        snapshot_id: The current snapshot, or None if the table has none.
        offsets: For each queue the first offset that is not in the table.
        gaps: The offsets below these that are not in the table either, in order.
        epochs: The address and the epoch of the log (`ReadEpoch`) of each broker when it was read last.
    """

    snapshot_id: int | None = None
    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    gaps: Sequence[LakeGap] = ()
    epochs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, topic: str, snapshot_id: int, properties: Mapping[str, str]) -> LakeState:
        """Return the state that `to_properties` has converted."""
        offsets = {
            MessageQueue(topic, broker, int(queue)): end
            for broker, queues in json.loads(properties[OFFSETS]).items()
            for queue, end in queues.items()
        }
        gaps = tuple(LakeGap(**each) for each in json.loads(properties[GAPS]))
        return cls(snapshot_id, offsets, gaps, json.loads(properties.get(EPOCHS, "{}")))

    def to_properties(self) -> dict[str, str]:
        """Return the state as properties of a snapshot."""
        nested: dict[str, dict[int, int]] = {}
        for queue, end in sorted(self.offsets.items()):
            nested.setdefault(queue.broker_name, {})[queue.queue_id] = end
        gaps = [each._asdict() for each in self.gaps]
        return {
            OFFSETS: json.dumps(nested),
            GAPS: json.dumps(gaps),
            EPOCHS: json.dumps(self.epochs),
        }


class LakeTable:
    """The table of a topic, or of the bodies of this topic that cannot be decoded."""

    def __init__(self, catalog: Catalog, iceberg: Table, topic: str) -> None:
        self._catalog = catalog
        self.iceberg = iceberg
        self.topic = topic

    @classmethod
    def find(cls, catalog: Catalog, namespace: str, topic: str, suffix: str = "") -> LakeTable | None:
        """Return the table of a topic, or None if it does not exist.

        `suffix` is "" or `ERRORS_SUFFIX`. Raises `LakeInvalid` if a table with this name is not that of the
        topic, and `LakeUnavailable`.
        """
        with lake_errors(f"the table of topic {topic}"):
            try:
                iceberg = catalog.load_table((namespace, table_name(topic) + suffix))
            except NoSuchTableError:
                return None
        mark = ERRORS_OF if suffix else TOPIC
        found = iceberg.properties.get(mark)
        if found != topic:
            raise LakeInvalid(
                f"the table {'.'.join(iceberg.name())} has the property {mark}={found}, not {topic}: it is"
                " another table. Rename or drop it, or give the lake another namespace"
            )
        return cls(catalog, iceberg, topic)

    @classmethod
    def create(
        cls,
        catalog: Catalog,
        namespace: str,
        topic: str,
        suffix: str = "",
        bodies: LakeBodies | None = None,
    ) -> LakeTable:
        """Return the table of a topic; create it, or add the columns that it lacks.

        `suffix` is that of `find`. `bodies` let all later rounds decode the bodies into columns. Raises
        `OptionInvalid` if the table has columns of other types, and as `find` does.
        """
        found = cls.find(catalog, namespace, topic, suffix)
        bodies = bodies or (found.bodies if found else None)
        columns = bodies.fields if bodies else pa.schema([(BODY, pa.binary())])
        if suffix:
            columns = columns.append(pa.field(REASON, pa.string()))
        if found is None:
            body, of_body = ((), {}) if bodies else ((_BODY[0],), _BODY[1])
            schema = Schema(*_SCHEMA.fields, *body)
            properties = {**_PROPERTIES, **of_body, (ERRORS_OF if suffix else TOPIC): topic}
            name = (namespace, table_name(topic) + suffix)
            with lake_errors(f"the table of topic {topic}"), suppress(TableAlreadyExistsError):
                catalog.create_table(name, schema, partition_spec=_BY_DAY, properties=properties)
            found = cls.find(catalog, namespace, topic, suffix)
            if found is None:
                raise LakeUnavailable(
                    f"the table of topic {topic} was dropped while it was created: try again"
                )
        found.add_columns(columns)
        if bodies and bodies != found.bodies:
            with lake_errors(f"the table {found.name}"), found.iceberg.transaction() as change:
                change.set_properties({BODIES: bodies.to_json()})
        return found

    @property
    def bodies(self) -> LakeBodies | None:
        """How the bodies are decoded into columns; None if the table has them as they are."""
        text = self.iceberg.properties.get(BODIES)
        return None if text is None else LakeBodies.from_json(text)

    def errors_table(self) -> LakeTable:
        """Return the table of the bodies that cannot be decoded; create it if it is missing."""
        namespace = ".".join(self.iceberg.name()[:-1])
        return self.create(self._catalog, namespace, self.topic, suffix=ERRORS_SUFFIX)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add the columns that the table lacks, and widen types. Raises `OptionInvalid` for other types."""
        present = self.arrow_schema
        if all(each.name in present.names and present.field(each.name).type == each.type for each in columns):
            return
        try:
            with lake_errors(f"the table of topic {self.topic}"), self.iceberg.update_schema() as update:
                update.union_by_name(columns)
        except LakeUnavailable as error:
            if isinstance(error.__cause__, CommitFailedException):
                raise CommitConflict(
                    f"the table {self.name} was changed while columns were added: try again"
                ) from error
            if isinstance(error.__cause__, ValidationError | ResolveError | ValueError | TypeError):
                raise OptionInvalid(
                    f"the schema of the bodies does not fit the table {self.name}: {error.__cause__}. Iceberg"
                    " widens int to long, float to double and decimals; give other fields other names"
                ) from error
            raise

    @property
    def name(self) -> str:
        """The name of the table in its catalog, with the namespace."""
        return ".".join(self.iceberg.name())

    @property
    def location(self) -> str:
        """The URI below which the table has its files."""
        return self.iceberg.location()

    @property
    def io(self) -> FileIO:
        """The file system of the table's files."""
        return self.iceberg.io

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's files, with the ids of Iceberg's fields."""
        return pa.schema([_plain(each) for each in schema_to_pyarrow(self.iceberg.schema())])

    def refresh(self) -> None:
        """Load the current metadata of the table. Raises `LakeUnavailable`."""
        with lake_errors(f"the table of topic {self.topic}"):
            self.iceberg = self._catalog.load_table(self.iceberg.name())

    def state(self, snapshot_id: int | None = None) -> LakeState:
        """Return the state of the table now, or at one of its snapshots.

        Raises `LakeInvalid` if the table has rows, but not the offsets that were reached, and
        `LakeUnavailable`.
        """
        self.refresh()
        metadata = self.iceberg.metadata
        shown = (
            self.iceberg.current_snapshot() if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
        )
        if shown is None:
            if snapshot_id is not None:
                raise LakeInvalid(f"the table {self.name} has no snapshot {snapshot_id}: it may have expired")
            return LakeState()
        of_snapshots = (_properties(each) for each in ancestors_of(shown, metadata))
        found = next((each for each in of_snapshots if OFFSETS in each), metadata.properties)
        if OFFSETS not in found or (shown.sequence_number or 0) < int(found.get(SEQUENCE, 0)):
            raise LakeInvalid(
                f"no snapshot of the table {self.name} up to {shown.snapshot_id} has the property {OFFSETS},"
                " so it is unknown which messages it has: roll the table back to a snapshot of RayMQ, or drop"
                " it with `raymq lake drop`"
            )
        return LakeState.parse(self.topic, shown.snapshot_id, found)

    def commit(
        self,
        files: Sequence[str],
        offsets: Mapping[MessageQueue, int],
        gaps: Sequence[LakeGap],
        began_with: LakeState,
        replaced: Iterable[DataFile] = (),
        epochs: Mapping[str, Sequence[str]] | None = None,
    ) -> LakeState:
        """Add Parquet files, and remove the files `replaced`, in one snapshot. Return the new state.

        `offsets`, `gaps` and `epochs` are all of the table, as they are after the commit; without `epochs`
        those of `began_with` stay.

        Raises:
            CommitConflict: The current snapshot is not that of `began_with`; nothing was added.
            LakeUnavailable: The commit failed. If its outcome is unknown, `state` returns it later.
        """
        self.refresh()
        current = self.iceberg.current_snapshot()
        if (current and current.snapshot_id) != began_with.snapshot_id:
            raise self._conflict(began_with)
        commit_id = str(uuid.uuid4())
        state = LakeState(None, dict(offsets), tuple(gaps), began_with.epochs if epochs is None else epochs)
        try:
            with lake_errors(f"the commit to the table {self.name}"):
                self._commit_once(files, state, commit_id, tuple(replaced))
        except LakeUnavailable as error:
            if isinstance(error.__cause__, _REFUSED):
                raise self._conflict(began_with) from error
            if self._snapshot_of(commit_id) is None:
                raise
        return replace(state, snapshot_id=self._snapshot_of(commit_id))

    def _commit_once(
        self, files: Sequence[str], state: LakeState, commit_id: str, replaced: Sequence[DataFile]
    ) -> None:
        metadata = self.iceberg.metadata
        # Another tool may have changed this property of the table, so the commit does not rely on it.
        self.iceberg.metadata = metadata.model_copy(
            update={"properties": {**metadata.properties, **NO_RETRIES}}
        )
        saved, sequence = state.to_properties(), str(metadata.next_sequence_number())
        with self.iceberg.transaction() as transaction:
            transaction.set_properties({**saved, SEQUENCE: sequence})
            update = transaction.update_snapshot(snapshot_properties={**saved, COMMIT: commit_id})
            with update.overwrite() if replaced else update.merge_append() as producer:
                for each in parquet_files_to_data_files(self.io, transaction.table_metadata, iter(files)):
                    producer.append_data_file(each)
                for each in replaced:
                    producer.delete_data_file(each)

    def oldest_row(self, file: DataFile) -> tuple[int, str]:
        """Return the least store time in a file, if it is known: the key by which files are sorted."""
        field_id = self.iceberg.schema().find_field(STORE_TIME).field_id
        bound = (file.lower_bounds or {}).get(field_id)
        return int(from_bytes(TimestamptzType(), bound)) if bound else 0, file.file_path

    def drop(self, *, keep_files: bool = False) -> None:
        """Remove the table and that of its errors from the catalog, and delete their files.

        Raises `LakeUnavailable`.
        """
        errors = self.iceberg.name()[-1] + ERRORS_SUFFIX
        remove = self._catalog.drop_table if keep_files else self._catalog.purge_table
        with lake_errors(f"the table {self.name}"):
            if self.bodies:
                with suppress(NoSuchTableError):
                    remove((*self.iceberg.name()[:-1], errors))
            remove(self.iceberg.name())

    def _snapshot_of(self, commit_id: str) -> int | None:
        self.refresh()
        snapshots = self.iceberg.metadata.snapshots
        return next(
            (each.snapshot_id for each in snapshots if _properties(each).get(COMMIT) == commit_id), None
        )

    def _conflict(self, began_with: LakeState) -> CommitConflict:
        return CommitConflict(
            f"another writer has committed to the table {self.name} since snapshot {began_with.snapshot_id}:"
            " nothing was added; begin again from its present state"
        )


def merge_gaps(gaps: Iterable[LakeGap]) -> tuple[LakeGap, ...]:
    """Return the gaps in order, with adjacent ones merged."""
    merged: list[LakeGap] = []
    for each in sorted(gaps):
        last = merged[-1] if merged else None
        if last is not None and last[:2] == each[:2] and each.begin <= last.end:
            merged[-1] = last._replace(end=max(last.end, each.end))
        else:
            merged.append(each)
    return tuple(merged)


def _plain(field_: pa.Field) -> pa.Field:
    return field_.with_type(_small(field_.type))


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a type of Arrow without 64-bit offsets, which the columns of messages do not have."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def _properties(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}
