"""Read JSON as RocketMQ writes it, in files and bodies: map keys that are no strings have no quotes.

A key is a number or a queue:

    {"brokerAddrs":{0:"127.0.0.1:10911"}}
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}
"""

import re
from typing import Any, Final

import orjson

from store.message.buffers import Buffer

# A string, which stays as it is, or a key that is a number or an object without objects in it. A string once
# begun is never given up: one without an end would be looked through again from each of its quotes.
_STRING_OR_KEY: Final = re.compile(
    rb"""
    ( "(?: [^"\\] | \\. )*+ "? )
    | (?<=[{,]) (\s*) ( -?\d+ | \{ (?: [^{}"] | "(?: [^"\\] | \\. )*+" )*+ \} ) (?=\s*:)
    """,
    re.DOTALL | re.VERBOSE,
)


def parse_rocketmq_json(text: Buffer) -> dict[str, Any]:
    """Return the object in `text`.

    A key that is a number or an object becomes the string of its JSON text.

    Raises:
        ValueError: `text` is no JSON object.
    """
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        content = orjson.loads(_STRING_OR_KEY.sub(_quoted, text))
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")  # noqa: TRY004
    return content


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[1] if match[1] is not None else match[2] + orjson.dumps(match[3].decode())
