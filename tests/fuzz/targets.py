"""The fuzz targets: for each name, a check that accepts any bytes, and the first inputs (seeds).

A check fails if it raises AssertionError or an undocumented exception, or if it crashes the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz import bodies, records, wire


class Target(NamedTuple):
    """A check of code that receives untrusted bytes, and its seeds."""

    check: Callable[[bytes], None]
    seeds: list[bytes]


_LOG = records.seeds_of_records()
_TEXTS = [b"", b"a=b\n", b"\\u00e4 = x\\\n y\n#c\n", b"k\\:1:v\\t", b"a\x01b\x02c\x01\x02\x01d\x02e"]
_TABLES = [b'{"a":{1:2}}', b'{topic:"x",0:[1,null]}', b'{"offsetTable":{"T@G":{0:1,1:2}}}', b"[]"]

TARGETS: dict[str, Target] = {
    "frames": Target(wire.frames, [b"\x00\x05\x30" + frame for frame in wire.CORPUS]),
    "header": Target(wire.header, wire.seeds_of_headers()),
    "json_header": Target(wire.json_header, wire.seeds_of_json()),
    "hot_header": Target(wire.hot_header, [bytes(range(24)), b"".join(bytes([n, 1]) for n in range(12))]),
    "request_header": Target(
        wire.request_header,
        [bytes([n]) + b"".join(bytes([m, 1]) for m in range(12)) for n in range(len(wire.HEADER_TYPES))],
    ),
    "body": Target(bodies.body, bodies.seeds_of_bodies()),
    "raft_message": Target(bodies.raft_message, bodies.seeds_of_raft_messages()),
    "property_string": Target(bodies.property_string, _TEXTS),
    "settings_text": Target(bodies.settings_text, _TEXTS),
    "table_text": Target(bodies.table_text, _TABLES),
    "record": Target(records.record, _LOG),
    "batch": Target(records.batch, records.seeds_of_batches()),
    "runs": Target(records.runs, records.seeds_of_runs()),
    "run_records": Target(records.run_records, records.seeds_of_run_records()),
    "recovery": Target(records.recovery, _LOG),
    "dispatch": Target(records.dispatch, records.with_first(_LOG, b"\x00", b"\x01")),
    "columns": Target(records.columns, _LOG),
    "places": Target(records.places, _LOG),
    "rows": Target(records.rows, [bytes([n]) + bytes(range(10, 90, n + 1)) for n in range(6)]),
    "index": Target(records.index, records.seeds_of_indexes()),
}
