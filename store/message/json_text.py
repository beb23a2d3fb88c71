"""JSON as RocketMQ writes it: in its files and in the bodies of its answers, the names of maps from numbers
are numbers without quotes.
"""

import re
from typing import Any, Final

import orjson

from store.message.buffers import Buffer

# A string, which stays as it is, or a number that stands for a name. A string once begun is never given up:
# one without an end would be looked through again from each of its quotes.
_STRING_OR_NAME: Final = re.compile(rb'("(?:[^"\\]|\\.)*+"?)|(?<=[{,])(\s*)(-?\d+)(?=\s*:)', re.DOTALL)


def parse_rocketmq_json(text: Buffer) -> dict[str, Any]:
    """The object in `text`, whose names may be unquoted numbers. Raises ValueError."""
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        content = orjson.loads(_STRING_OR_NAME.sub(_quoted, text))
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not an object")  # noqa: TRY004
    return content


def _quoted(match: re.Match[bytes]) -> bytes:
    return match[1] if match[1] is not None else b'%b"%b"' % (match[2], match[3])
