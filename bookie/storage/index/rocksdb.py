"""KeyValue on RocksDB, through rocksdict.

RocksDB's own write-ahead log is off: the bookie's journal is that log, and nothing counts as
durable before `flush`. A batch holds the interpreter while it is applied, so batches stay small;
flushing runs on a thread. Deleted pairs are only marked, until RocksDB compacts them away, by
itself and soon after a flush; until then each mark costs the scans that pass over it. Every error
is raised as BookieIoError.

For tools there are index stores as directories that can replace each other, and a view of such a
directory through links, so that opening it for reading changes nothing in it. RocksDB itself writes
nothing then, but its Python package writes a file of its own at each opening, whatever the access:
that fails on a file system that is mounted read-only, and may leave half a file in the index of a
running bookie.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from bookie.core.descriptors import INDEX_FILES_MAX
from bookie.storage.disk.disk import Disk
from bookie.storage.index.key_value import INDEX_CURE, IndexDamaged, IndexUnreadable
from ledger.errors import BookieIoError, InvalidArgument
from ledger.runtime.private_files import DIRECTORY_MODE

_CONFIG_FILE: Final = "rocksdict-config.json"
"""A file of the package: how keys are encoded."""
_LOCK_FILE: Final = "LOCK"


class IndexView:
    """A temporary directory with links to the files of `path`; `close` removes it."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._path = path
        names = os.listdir(path)
        self._directory = tempfile.TemporaryDirectory(prefix="ledgerstream-index-")
        self.path = self._directory.name
        try:
            for name in names:
                source, link = os.path.abspath(f"{path}/{name}"), f"{self.path}/{name}"
                if name == _CONFIG_FILE:
                    shutil.copyfile(source, link)
                elif name != _LOCK_FILE:
                    os.symlink(source, link)
        except BaseException:
            self.close()
            raise

    def named(self, message: str) -> str:
        """Returns a message of RocksDB with the original path in it."""
        return message.replace(self.path, self._path)

    def close(self) -> None:
        """Removes the links. Close the store before: files are opened when they are needed."""
        self._directory.cleanup()


_log = logging.getLogger(__name__)

MIB = 1 << 20
_BLOCK_BYTES = 16 * 1024
_METADATA_BLOCK_BYTES = 16 * 1024
_MARKS_SKIPPED_MAX = 100
"""The number of deleted pairs, some 20 us, after which a look-up checks whether there is anything
to find."""
_TOO_MANY_SKIPPED = "Too many internal keys skipped"
_MARKS_WINDOW, _MARKS_MAX = 4000, 2000
"""A file is compacted if this many of as many adjacent records are marks of deleted pairs. Passing
over that many takes half a millisecond."""
_IN_USE = ("lock hold by current process", "While lock file")
"""Texts of RocksDB. Not just "lock": damage is reported as "block checksum mismatch"."""
_DAMAGED = ("Corruption:", "IO error: No such file or directory")
"""Begins of its texts. Others say that the disk is full, or that permissions are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksOptions:
    """Sizes of one index store. Its memory is about twice their sum."""

    block_cache_bytes: int = 64 * MIB
    """Parts of the index kept in memory; a run of a thousand entries takes 4 KiB."""
    write_buffer_bytes: int = 32 * MIB
    """The amount gathered in memory before RocksDB writes it by itself."""
    files_open_max: int = INDEX_FILES_MAX

    def __post_init__(self) -> None:
        if self.block_cache_bytes < 0 or self.write_buffer_bytes < 64 * 1024:
            raise InvalidArgument(
                f"block_cache_bytes {self.block_cache_bytes}, write_buffer_bytes "
                f"{self.write_buffer_bytes}: give 0 or more, and 65536 or more"
            )


class RocksKeyValue:
    """A sorted map in the directory `path`, which is created if it does not exist.

    Opening and all calls but `flush` are synchronous.
    """

    def __init__(
        self, path: str, options: RocksOptions | None = None, *, is_read_only: bool = False
    ) -> None:
        """Raises BookieIoError, with a text of its own if another process has the directory open.

        `is_read_only`: takes no lock, changes and creates nothing; sees what was flushed when it
        was opened.
        """
        self._path = path
        self._view: IndexView | None = None
        if is_read_only:
            try:
                self._view = IndexView(path)
            except OSError as error:
                raise BookieIoError(
                    f"index {path} cannot be opened to read: {error}. Cure: make it readable, and "
                    "have a directory for temporary files (TMPDIR) with a little room"
                ) from error
        else:
            # The files in it have the mode that the umask gives.
            with suppress(OSError):  # RocksDB finds what is wrong, and says it
                os.mkdir(path, DIRECTORY_MODE)
        access = AccessType.read_only() if is_read_only else AccessType.read_write()
        try:
            rocks = _rocks_options(options or RocksOptions())
            # Unless the column family is named, rocksdict opens an existing directory with the
            # options it was created with, as far as these were stored: with a block cache of 8 MiB.
            families = {"default": rocks}
            opened = path if self._view is None else self._view.path
            self._db = Rdict(opened, rocks, column_families=families, access_type=access)
        except Exception as error:
            text = self._text_of(error)
            if self._view is not None:
                self._view.close()
            if any(sign in str(error) for sign in _IN_USE):
                raise BookieIoError(
                    f"index {path} is in use by another process: {text}. Cure: stop the other "
                    "bookie, or give this one directories of its own"
                ) from error
            kind = _kind_of(error)
            raise kind(f"index {path} cannot be opened: {text}. {INDEX_CURE}") from error
        self._impatient = ReadOptions()
        self._impatient.set_max_skippable_internal_keys(_MARKS_SKIPPED_MAX)
        self._no_wal = WriteOptions()
        # A property, although the stubs declare it as a method.
        self._no_wal.disable_wal = True  # type: ignore[method-assign, assignment]

    @contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises plain Exceptions
            raise _kind_of(error)(self._explain(what, error)) from error

    def _unreadable(self, what: str, error: Exception) -> IndexUnreadable:
        return IndexUnreadable(self._explain(what, error))

    def _explain(self, what: str, error: Exception) -> str:
        return f"index {self._path}: {what} failed: {self._text_of(error)}. {INDEX_CURE}"

    def _text_of(self, error: Exception) -> str:
        return str(error) if self._view is None else self._view.named(str(error))

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:  # a context manager would double the cost
            raise self._unreadable("get", error) from error
        return value

    def floor(self, key: bytes, lowest: bytes) -> tuple[bytes, bytes] | None:
        try:
            iterator = self._db.iter(self._impatient)
            iterator.seek_for_prev(key)
            if not iterator.valid() and self._is_given_up(iterator):
                # Backwards RocksDB has no bound (rocksdict's lower bound sets the upper one), and
                # would pass through all that was deleted below: forwards it ends at the key.
                if not self._has_any(lowest, key):
                    return None
                iterator = self._db.iter()
                iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()
                return None
            found: bytes = iterator.key()
            return (found, iterator.value()) if found >= lowest else None
        except Exception as error:
            raise self._unreadable("seek", error) from error

    @staticmethod
    def _is_given_up(iterator: RdictIter) -> bool:
        """Returns whether a scan gave up because of too many marks of deleted pairs. Raises other
        errors."""
        try:
            iterator.status()
        except Exception as error:
            if _TOO_MANY_SKIPPED in str(error):
                return True
            raise
        return False

    def _has_any(self, first: bytes, last: bytes) -> bool:
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(last + b"\0")
        iterator = self._db.iter(bounds)
        iterator.seek(first)
        if iterator.valid():
            return True
        iterator.status()
        return False

    def items(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            bounds = ReadOptions()
            bounds.set_iterate_upper_bound(end)
            iterator = self._db.iter(bounds)
            iterator.seek(first)
        except Exception as error:
            raise self._unreadable("iteration", error) from error
        while True:
            try:
                if not iterator.valid():
                    iterator.status()
                    return
                pair = iterator.key(), iterator.value()
                iterator.next()
            except Exception as error:
                raise self._unreadable("iteration", error) from error
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

    def close(self) -> None:
        """Never fails: RocksDB flushes here what nothing relies on, and cannot once one of its
        background threads has met damage."""
        try:
            with self._mapped("close"):
                self._db.close()
        except BookieIoError as error:
            _log.warning("index closed without its last flush cause=%s", error)
        if self._view is not None:
            self._view.close()


def _kind_of(error: Exception) -> type[BookieIoError]:
    return IndexDamaged if str(error).startswith(_DAMAGED) else BookieIoError


def index_opener(
    cache_bytes: int, directories: int, files_open_max: int = INDEX_FILES_MAX
) -> Callable[[str], RocksKeyValue]:
    """Returns a function that opens the index stores of `directories` ledger directories, which
    have equal shares of `cache_bytes`, and keep `files_open_max` files open each."""
    options = RocksOptions(
        block_cache_bytes=cache_bytes // directories, files_open_max=files_open_max
    )
    return partial(RocksKeyValue, options=options)


def _rocks_options(options: RocksOptions) -> Options:
    rocks = Options(raw_mode=True)
    rocks.create_if_missing(True)
    rocks.set_write_buffer_size(options.write_buffer_bytes)
    rocks.set_max_write_buffer_number(2)
    rocks.set_max_background_jobs(2)
    rocks.set_max_open_files(options.files_open_max)
    rocks.set_keep_log_file_num(3)
    rocks.set_compression_type(DBCompressionType.lz4())
    rocks.add_compact_on_deletion_collector_factory(_MARKS_WINDOW, _MARKS_MAX, 0.0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(options.block_cache_bytes))
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(10, False)
    # Filters and inner indexes in blocks of their own: whole, those of a million ledgers take
    # megabytes, fit into no shard of the cache, and are read and verified again for each lookup.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    rocks.set_block_based_table_factory(table)
    return rocks


class RocksStores:
    """`bookie.storage.check.index_rebuild.IndexStores` on the file system."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, *, is_read_only: bool = False) -> RocksKeyValue:
        """Opens a store, and creates it if it does not exist, unless `is_read_only`. Raises
        BookieIoError."""
        if is_read_only and not os.path.isdir(path):
            raise BookieIoError(f"index {path} is not there")
        return RocksKeyValue(path, is_read_only=is_read_only)

    def open_to_read(self, path: str) -> RocksKeyValue:
        """Opens a store without changing anything. Raises BookieIoError."""
        return self.open(path, is_read_only=True)

    async def names(self, directory: str) -> list[str]:
        return await self._disk.list_directory(directory)

    async def remove(self, path: str) -> None:
        """Removes a store with everything in it; no error if it does not exist."""

        def do() -> None:
            if os.path.isdir(path):
                shutil.rmtree(path)

        await trio.to_thread.run_sync(do)

    async def rename(self, old: str, new: str) -> None:
        """Renames a store durably."""
        await self._disk.rename(old, new)
        await self._disk.sync_directory(os.path.dirname(new) or ".")
