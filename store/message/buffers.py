"""The bytes-like types that the codecs read from."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
