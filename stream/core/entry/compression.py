"""Compression of an entry's buffers, with the size known before anything is inflated.

Must never produce more bytes than stated: a small hostile input must not become a large buffer. The
libraries are optional (`ledgerstream[compression]`) and imported on first use.
"""

from __future__ import annotations

import enum

from ledger.errors import InvalidArgument
from stream.errors import CompressionUnavailable, RecordFormatError

Buffer = bytes | bytearray | memoryview


class Compression(enum.IntEnum):
    """How the buffers of an entry are stored. The numbers are part of the format."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @classmethod
    def named(cls, name: str) -> Compression:
        """Returns the kind named "none", "lz4" or "zstd". Raises InvalidArgument."""
        try:
            return cls[name.upper()]
        except KeyError:
            known = ", ".join(kind.name.lower() for kind in cls)
            raise InvalidArgument(f"compression {name[:40]!r} is not one of: {known}") from None


def _unavailable(kind: Compression, error: ImportError) -> CompressionUnavailable:
    return CompressionUnavailable(
        f"compression {kind.name.lower()} needs a library that is not installed "
        f"({error}); install ledgerstream[compression]"
    )


def require(kind: Compression) -> None:
    """Raises CompressionUnavailable if this process cannot write entries of this kind."""
    deflate(b"", kind)


def deflate(data: Buffer, kind: Compression) -> bytes:
    """Returns `data` compressed. Raises CompressionUnavailable."""
    if kind is Compression.NONE:
        return bytes(data)
    try:
        if kind is Compression.LZ4:
            import lz4.block

            return bytes(lz4.block.compress(data, store_size=False))
        import zstandard

        return zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)
    except ImportError as error:
        raise _unavailable(kind, error) from None


def inflate(data: Buffer, kind: Compression, size: int, offset: int) -> Buffer:
    """Returns the `size` bytes that were compressed into `data`; never makes more than `size`
    bytes.

    `offset` is where `data` begins in its payload, for the message. Raises RecordFormatError if the
    data is damaged or holds another number of bytes, CompressionUnavailable.
    """
    if kind is Compression.NONE:
        return data
    try:
        result = _inflate_lz4(data, size) if kind is Compression.LZ4 else _inflate_zstd(data, size)
    except ImportError as error:
        raise _unavailable(kind, error) from None
    except ValueError as error:
        raise RecordFormatError(offset, f"{kind.name.lower()} data is damaged: {error}") from None
    if len(result) != size:
        raise RecordFormatError(
            offset, f"{kind.name.lower()} data holds {len(result)} bytes, {size} were stated"
        )
    return result


def _inflate_lz4(data: Buffer, size: int) -> bytes:
    import lz4.block

    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size))
    except lz4.block.LZ4BlockError as error:
        raise ValueError(str(error)) from None


def _inflate_zstd(data: Buffer, size: int) -> bytes:
    import zstandard

    # The decompressor trusts the size in the frame over any limit given to it, so that size is
    # checked first; a frame without one is rejected (ours always have it).
    try:
        frame = zstandard.get_frame_parameters(data)
        if frame.content_size != size:
            raise ValueError(f"its frame claims {frame.content_size} bytes, {size} were stated")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
