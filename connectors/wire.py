"""The few bytes of protobuf that are written by hand on the way of a message."""

from functools import lru_cache


def varint(number: int) -> bytes:
    r"""Return ``number`` (0 or more) as a base-128 varint.

    Example:
        >>> varint(300)
        b'\xac\x02'
    """
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follow
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


@lru_cache(maxsize=4096)
def field_head(number: int, size_bytes: int) -> bytes:
    r"""Return what stands before the ``size_bytes`` of a length-delimited field: string, bytes or message.

    Example:
        >>> field_head(1, 2) + b"ab"
        b'\n\x02ab'
    """
    return varint(number << 3 | 2) + varint(size_bytes)


def bytes_field(number: int, value: bytes) -> bytes:
    r"""Return a length-delimited field, whole.

    Example:
        >>> bytes_field(1, b"ab")
        b'\n\x02ab'
    """
    return field_head(number, len(value)) + value
