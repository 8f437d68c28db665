"""KeyValue on RocksDB, through rocksdict.

RocksDB's own write-ahead log is off: the bookie's journal is that log, and nothing counts as
durable before `flush`. A batch holds the interpreter while it is applied, so batches stay
small; flushing and compacting run on a thread. Every error leaves as BookieIoError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from ledger.errors import BookieIoError, InvalidArgument

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksOptions:
    """Sizes of one index store. What it may take in memory is about twice their sum."""

    block_cache_bytes: int = 64 * MIB
    """Parts of the index kept in memory; a run of a thousand entries takes 4 KiB."""
    write_buffer_bytes: int = 32 * MIB
    """What gathers in memory before RocksDB writes it by itself."""
    files_open_max: int = 500

    def __post_init__(self) -> None:
        if self.block_cache_bytes < 0 or self.write_buffer_bytes < 64 * 1024:
            raise InvalidArgument(
                f"block_cache_bytes {self.block_cache_bytes}, write_buffer_bytes "
                f"{self.write_buffer_bytes}: give 0 or more, and 65536 or more"
            )


class RocksKeyValue:
    """A sorted map in the directory `path`, which is made if it does not exist.

    Opening and all calls but `flush` and `compact` are synchronous.
    """

    def __init__(self, path: str, options: RocksOptions | None = None) -> None:
        """Raises BookieIoError; says so if another process has the directory open."""
        self._path = path
        try:
            self._db = Rdict(path, _rocks_options(options or RocksOptions()))
        except Exception as error:
            if "lock" in str(error).lower():
                raise BookieIoError(
                    f"index {path} is in use by another process: {error}. Cure: stop the other "
                    "bookie, or give this one directories of its own"
                ) from error
            raise BookieIoError(f"index {path} cannot be opened: {error}") from error
        self._no_wal = WriteOptions()
        # A property, although the stubs say it is a method.
        self._no_wal.disable_wal = True  # type: ignore[method-assign, assignment]

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain Exceptions
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: Exception) -> BookieIoError:
        return BookieIoError(f"index {self._path}: {what} failed: {error}")

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:  # a context manager would double the cost
            raise self._failed("get", error) from error
        return value

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        try:
            iterator = self._db.iter()
            iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()
                return None
            found: bytes = iterator.key()
            return (found, iterator.value()) if found >= lowest else None
        except Exception as error:
            raise self._failed("seek", error) from error

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._mapped("iteration"):
            bounds = ReadOptions()
            bounds.set_iterate_upper_bound(end)
            iterator = self._db.iter(bounds)
            iterator.seek(first)
        while True:
            with self._mapped("iteration"):
                if not iterator.valid():
                    iterator.status()
                    return
                pair = iterator.key(), iterator.value()
                iterator.next()
            yield pair

    def write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = ()) -> None:
        with self._mapped("write"):
            batch = WriteBatch(raw_mode=True)
            put = batch.put
            for key, value in puts:
                put(key, value)
            for key in deletes:
                batch.delete(key)
            self._db.write(batch, self._no_wal)

    async def flush(self) -> None:
        with self._mapped("flush"):
            await trio.to_thread.run_sync(self._db.flush)

    async def compact(self) -> None:
        with self._mapped("compaction"):
            await trio.to_thread.run_sync(self._db.compact_range, None, None)

    def close(self) -> None:
        with self._mapped("close"):
            self._db.close()


def _rocks_options(options: RocksOptions) -> Options:
    rocks = Options(raw_mode=True)
    rocks.create_if_missing(True)
    rocks.set_write_buffer_size(options.write_buffer_bytes)
    rocks.set_max_write_buffer_number(2)
    rocks.set_max_background_jobs(2)
    rocks.set_max_open_files(options.files_open_max)
    rocks.set_keep_log_file_num(3)
    rocks.set_compression_type(DBCompressionType.lz4())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(options.block_cache_bytes))
    table.set_block_size(16 * 1024)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    rocks.set_block_based_table_factory(table)
    return rocks
