"""A value as a file that tells whether it is whole: JSON with a schema number and a checksum.

Owns the envelope. Refuses to know what is inside."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from msgspec import Struct


class SealError(ValueError):
    """Not such a file, damaged, or of another schema; its text says which."""


class _Sealed(Struct, frozen=True):
    schema: int
    sha256: str
    body: msgspec.Raw


def seal(raw: bytes, schema: int) -> bytes:
    """`raw`: JSON."""
    return msgspec.json.encode(_Sealed(schema, sha256(raw).hexdigest(), msgspec.Raw(raw))) + b"\n"


def unseal(data: bytes, schema: int) -> bytes:
    try:
        held = msgspec.json.decode(data, type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SealError(f"not such a file: {error}") from None
    if held.schema != schema:
        raise SealError(f"schema {held.schema}, this version reads {schema}")
    if sha256(bytes(held.body)).hexdigest() != held.sha256:
        raise SealError("the checksum does not match; the file is damaged or was edited")
    return bytes(held.body)
