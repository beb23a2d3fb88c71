"""The bytes-like types that the codecs read from, and the conversion of any buffer to bytes."""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def owned_bytes(data: object) -> bytes:
    """Return the bytes of a buffer, such as a bytearray, memoryview or array, in C order; bytes as they are.

    The caller may change the buffer afterwards. The result's length is the number of bytes; `len` of a view
    with several dimensions or larger items is not.

    Raises:
        TypeError: `data` is no buffer, is released or closed, contains Python objects, or is a single number
            (of numpy).
    """
    if type(data) is bytes:
        return data
    kind = type(data).__name__
    try:
        view = memoryview(data)  # type: ignore[arg-type]  # any other object raises the TypeError
    except (TypeError, ValueError, BufferError) as error:
        raise TypeError(f"body is a {kind}: give bytes or another buffer of bytes ({error})") from error
    with view:
        if "O" in view.format or not view.ndim:
            raise TypeError(f"body is a {kind} of Python objects, or a single number: give bytes")
        return view.tobytes()
