# ruff: noqa: PLR2004 - the numbers are the algorithm's
"""FARM_FINGERPRINT: the open-source FarmHash Fingerprint64, which never changes.

After https://github.com/google/farmhash, ``namespace farmhashna``.
"""

from struct import unpack_from
from typing import Final

_MASK: Final = 2**64 - 1
_K0: Final = 0xC3A5C85C97CB3127
_K1: Final = 0xB492B66FBE98F273
_K2: Final = 0x9AE16A3B2F90404F


def fingerprint(data: bytes) -> int:
    """Return the fingerprint of ``data`` as BigQuery's FARM_FINGERPRINT gives it: a signed INT64.

    Example:
        >>> fingerprint(b""), fingerprint(b"abc")
        (-7286425919675154353, 2640714258260161385)
    """
    size = len(data)
    if size <= 16:
        found = _hash_16(data)
    elif size <= 32:
        found = _hash_32(data)
    elif size <= 64:
        found = _hash_64(data)
    else:
        found = _hash_long(data)
    return found - 2**64 if found >> 63 else found


def _word(data: bytes, place: int) -> int:
    return int(unpack_from("<Q", data, place)[0])


def _half(data: bytes, place: int) -> int:
    return int(unpack_from("<I", data, place)[0])


def _rotate(value: int, shift: int) -> int:
    return (value >> shift | value << (64 - shift)) & _MASK


def _mix(value: int) -> int:
    return value ^ value >> 47


def _combine(left: int, right: int, factor: int) -> int:
    first = _mix((left ^ right) * factor & _MASK)
    return _mix((right ^ first) * factor & _MASK) * factor & _MASK


def _hash_16(data: bytes) -> int:
    size = len(data)
    factor = _K2 + size * 2
    if size >= 8:
        a, b = _word(data, 0) + _K2 & _MASK, _word(data, size - 8)
        c = _rotate(b, 37) * factor + a & _MASK
        d = (_rotate(a, 25) + b) * factor & _MASK
        return _combine(c, d, factor)
    if size >= 4:
        return _combine(size + (_half(data, 0) << 3), _half(data, size - 4), factor)
    if size > 0:
        low, high = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _mix((low * _K2 ^ high * _K0) & _MASK) * _K2 & _MASK
    return _K2


def _hash_32(data: bytes) -> int:
    size = len(data)
    factor = _K2 + size * 2
    a, b = _word(data, 0) * _K1 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    left = _rotate(a + b & _MASK, 43) + _rotate(c, 30) + d & _MASK
    right = a + _rotate(b + _K2 & _MASK, 18) + c & _MASK
    return _combine(left, right, factor)


def _hash_64(data: bytes) -> int:
    size = len(data)
    factor = _K2 + size * 2
    a, b = _word(data, 0) * _K2 & _MASK, _word(data, 8)
    c, d = _word(data, size - 8) * factor & _MASK, _word(data, size - 16) * _K2 & _MASK
    y = _rotate(a + b & _MASK, 43) + _rotate(c, 30) + d & _MASK
    z = _combine(y, a + _rotate(b + _K2 & _MASK, 18) + c & _MASK, factor)
    e, f = _word(data, 16) * factor & _MASK, _word(data, 24)
    g, h = (y + _word(data, size - 32)) * factor & _MASK, (z + _word(data, size - 24)) * factor & _MASK
    left = _rotate(e + f & _MASK, 43) + _rotate(g, 30) + h & _MASK
    return _combine(left, e + _rotate(f + a & _MASK, 18) + g & _MASK, factor)


def _weak(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = unpack_from("<4Q", data, place)
    a = a + w & _MASK
    b = _rotate(b + a + z & _MASK, 21)
    c = a
    a = a + x + y & _MASK
    b = b + _rotate(a, 44) & _MASK
    return a + z & _MASK, b + c & _MASK


def _hash_long(data: bytes) -> int:
    seed = 81
    x, y = seed, seed * _K1 + 113 & _MASK
    z = _mix(y * _K2 + 113 & _MASK) * _K2 & _MASK
    v = w = (0, 0)
    x = x * _K2 + _word(data, 0) & _MASK
    end = (len(data) - 1) // 64 * 64
    last = end + ((len(data) - 1) & 63) - 63
    for place in range(0, end, 64):
        x = _rotate(x + y + v[0] + _word(data, place + 8) & _MASK, 37) * _K1 & _MASK
        y = _rotate(y + v[1] + _word(data, place + 48) & _MASK, 42) * _K1 & _MASK
        x ^= w[1]
        y = y + v[0] + _word(data, place + 40) & _MASK
        z = _rotate(z + w[0] & _MASK, 33) * _K1 & _MASK
        v = _weak(data, place, v[1] * _K1 & _MASK, x + w[0] & _MASK)
        w = _weak(data, place + 32, z + w[1] & _MASK, y + _word(data, place + 16) & _MASK)
        z, x = x, z
    factor = _K1 + ((z & 0xFF) << 1) & _MASK
    w = (w[0] + ((len(data) - 1) & 63) & _MASK, w[1])
    v = (v[0] + w[0] & _MASK, v[1])
    w = (w[0] + v[0] & _MASK, w[1])
    x = _rotate(x + y + v[0] + _word(data, last + 8) & _MASK, 37) * factor & _MASK
    y = _rotate(y + v[1] + _word(data, last + 48) & _MASK, 42) * factor & _MASK
    x ^= w[1] * 9 & _MASK
    y = y + v[0] * 9 + _word(data, last + 40) & _MASK
    z = _rotate(z + w[0] & _MASK, 33) * factor & _MASK
    v = _weak(data, last, v[1] * factor & _MASK, x + w[0] & _MASK)
    w = _weak(data, last + 32, z + w[1] & _MASK, y + _word(data, last + 16) & _MASK)
    z, x = x, z
    left = _combine(v[0], w[0], factor) + _mix(y) * _K0 + z & _MASK
    return _combine(left, _combine(v[1], w[1], factor) + x & _MASK, factor)
