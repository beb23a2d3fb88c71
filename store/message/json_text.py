"""Parse the JSON of RocketMQ's files and bodies, in which map keys may be unquoted.

RocketMQ's library (fastjson) writes a number or an object as a map key without quotes:

    {"brokerAddrs":{0:"127.0.0.1:10911"}}
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}
"""

import re
from typing import Any, Final

import orjson

from store.message.buffers import Buffer

# Matches either a string, which is kept as it is, or an unquoted key: a number, or an object that contains no
# other object. The quantifiers are possessive (*+): with backtracking, an unterminated string would be
# scanned again from each of its quotes, which takes quadratic time.
_STRING_OR_KEY: Final = re.compile(
    rb"""
    ( "(?: [^"\\] | \\. )*+ "? )
    | (?<=[{,]) (\s*) ( -?\d+ | \{ (?: [^{}"] | "(?: [^"\\] | \\. )*+" )*+ \} ) (?=\s*:)
    """,
    re.DOTALL | re.VERBOSE,
)


def parse_rocketmq_json(text: Buffer) -> dict[str, Any]:
    """Parse a JSON object as written by RocketMQ.

    A map key without quotes (a number or an object) becomes a string that contains the key's JSON text.

    Raises:
        ValueError: `text` is not valid JSON, or is not a JSON object.
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
