"""Runs one bookie as a process: real drivers, log, signals, exit code, settings of the allocator.

A composition root. The supervisor (`bookie.standalone.supervisor`) starts its children as `python
-m bookie.process CONFIG`; a child ends at once when the pipe on its stdin is closed, because its
supervisor is dead then. Prints "ready BOOKIE-ID" once the bookie is registered. The allocator is
tuned only where the C library is glibc.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import random
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import trio

from bookie.autorecovery import heal_ledgers
from bookie.bookie import Bookie, check_files
from bookie.config import BookieConfig, load_bookie_config
from bookie.core.descriptors import ALL_DESCRIPTORS, DescriptorPlan
from bookie.monitoring.http import http_address, open_http, serve_http
from bookie.monitoring.snapshot import Observer
from bookie.server.audit import AuditLog
from bookie.startup.cookies import check_has_no_cluster
from bookie.startup.descriptors import settle_descriptors
from bookie.startup.power_loss import boot_id
from bookie.startup.preflight import check_not_running
from bookie.storage.disk.disk import Disk
from bookie.storage.disk.read_only_disk import ReadOnlyDisk
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import RocksStores, index_opener
from ledger.cli.standard_streams import announce, open_standard_streams
from ledger.cli.supervised import wait_starter_gone
from ledger.core.ledger_keys import LedgerKeys
from ledger.errors import InvalidArgument, LedgerError, MetadataUnavailable, NoSuchCluster
from ledger.metastore import ClusterAddress, MetadataStore, open_store
from ledger.metastore.cluster_secret import load_keys
from ledger.metastore.zookeeper_access import load_access
from ledger.runtime.audit_file import AuditFile
from ledger.runtime.certificates import TlsContext
from ledger.runtime.logs import open_log
from ledger.runtime.network import TcpNetwork
from ledger.runtime.private_files import readable_by_others
from ledger.shown_text import shown_text

# In the order of glibc's mallopt: return memory late; request much at once; map blocks of the size
# of a read-ahead separately, because they live long and the holes they leave fill with smaller
# ones; and use one arena for all threads, as each arena keeps the most that one of its users took.
_OPTIONS = ((-1, 1 << 30), (-2, 64 << 20), (-3, 200 << 10), (-8, 1))
_INTERVAL_S = 60.0


def tune_allocator() -> None:
    """Makes the allocator reuse buffers that are allocated and freed at a high rate."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        for option, value in _OPTIONS:
            mallopt(option, value)


def give_memory_back() -> None:
    """Returns free pages to the system, also from the middle of the heap.

    A busy bookie allocates them again at its next checkpoint; an idle one does not keep the memory
    of its busiest minute. Takes about a millisecond, in which allocating threads wait.
    """
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


async def give_memory_back_regularly() -> None:
    """Calls `give_memory_back` once a minute, so seldom that allocating again costs little."""
    while True:
        await trio.sleep(_INTERVAL_S)
        await trio.to_thread.run_sync(give_memory_back)


def _of_glibc(name: str) -> Callable[..., int] | None:
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return function


_log = logging.getLogger(__name__)

_EXIT_ERROR = 1
_STORE_RETRY_S = 1.0
_SWITCH_INTERVAL_S = 0.001
# Thresholds of the cyclic collector's generations. Each object that stays is examined once in
# either case; with very many ledgers, small rounds divide that into steps of a few milliseconds.
_GC_THRESHOLDS = (5000, 2, 17_000)


def run_bookie_process(config_file: Path, *, is_child: bool) -> int:
    """Runs the bookie until SIGTERM or SIGINT and returns the exit code of the process.

    SIGHUP opens the log file again; without one it changes nothing, unless the bookie runs on a
    terminal, which has gone away then: it stops.

    Raises InvalidArgument for wrong settings.
    """
    config = load_bookie_config(config_file, os.environ, {})
    reopen_log = open_log(os.environ)
    warn_of_readers(config, config_file)
    _tune_interpreter()
    config, descriptors = settle_descriptors(config)
    try:
        trio.run(partial(_serve, config, is_child, reopen_log, descriptors=descriptors))
    except BaseExceptionGroup as group:
        expected, bugs = group.split((LedgerError, OSError))
        if bugs is not None:
            raise
        assert expected is not None
        _log.critical("bookie shuts down cause=%s", _first_cause(expected))
        return _EXIT_ERROR
    except (LedgerError, OSError) as error:
        _log.critical("bookie shuts down cause=%s", error)
        return _EXIT_ERROR
    return 0


def warn_of_readers(config: BookieConfig, config_file: Path) -> None:
    """Logs which files and directories that exist can be read by every user of this machine. What
    is made later is the owner's alone."""
    metadata = ClusterAddress.parse(config.metadata_uri).sqlite_path
    paths = [*config.journal_directories, *config.ledger_directories, str(config_file)]
    if config.audit_file:
        paths.append(config.audit_file)
    for path in dict.fromkeys(paths if metadata is None else [*paths, metadata]):
        mode = readable_by_others(path)
        if mode is not None:
            _log.warning(
                "every user of this machine can read path=%s mode=%s cure=%s",
                path,
                mode,
                f"chmod go-rwx {shlex.quote(path)}",
            )


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def _serve(
    config: BookieConfig,
    is_child: bool,
    reopen_log: Callable[[], bool] = lambda: False,
    *,
    descriptors: DescriptorPlan = ALL_DESCRIPTORS,
) -> None:
    handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with trio.open_signal_receiver(*handled) as signals:
        async with trio.open_nursery() as nursery:
            if is_child:
                nursery.start_soon(_die_with_supervisor)
            stopped: list[Callable[[], None]] = [nursery.cancel_scope.cancel]
            nursery.start_soon(_heed_signals, signals, stopped, reopen_log)
            http_tls, audit, keys = await _open_security(config, nursery)
            listeners = await _open_http(config)
            disk, count = RealDisk(), len(config.ledger_directories)
            index = index_opener(config.index_cache_bytes, count, descriptors.index_files_max)
            opened = _open_store_with_retries(config, disk)
            async with opened as store, trio.open_nursery() as serving:
                # The store stays open for unregistering.
                stopped.append(serving.cancel_scope.cancel)
                bookie = Bookie(
                    config,
                    network=TcpNetwork(),
                    disk=disk,
                    key_value=index,
                    store=store,
                    now_ms=_wall_ms,
                    rng=random.SystemRandom(),
                    http=http_address(listeners, config.advertised_host or config.host),
                    boot_id=boot_id(),
                    index_stores=RocksStores(disk),
                    logs_open_max=descriptors.logs_open_max,
                    audit=audit,
                    keys=keys,
                )
                observer = Observer(bookie, disk)
                serving.start_soon(serve_http, listeners, observer, http_tls)
                bookie_id = await serving.start(_run_bookie, bookie, serving.cancel_scope)
                stopped.append(bookie.stop)
                serving.start_soon(give_memory_back_regularly)
                if config.autorecovery:
                    heal = partial(
                        heal_ledgers,
                        network=TcpNetwork(),
                        now_ms=_wall_ms,
                        rng=random.SystemRandom(),
                        keys=keys,
                        on_begin=observer.observe_healing,
                    )
                    serving.start_soon(heal, config, store, bookie_id)
                gc.collect()
                gc.freeze()
                announce(f"ready {bookie_id}")
            nursery.cancel_scope.cancel()


_DISK_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of a file that must not stop a bookie, at a start neither."""


async def _open_security(
    config: BookieConfig, nursery: trio.Nursery
) -> tuple[TlsContext | None, AuditLog | None, LedgerKeys]:
    """Returns the TLS of the HTTP server, the audit log, and the keys of ledgers. Before anything
    starts; raises InvalidArgument for unusable files."""
    check_files(config)
    own_tls = config.server_context()
    audit = await open_audit(config, nursery)
    keys = load_keys(config.cluster_secret_file, {})
    config.check_secret(keys.has_secret)
    return own_tls if config.http_tls else None, audit, keys


async def open_audit(config: BookieConfig, nursery: trio.Nursery) -> AuditLog | None:
    """Returns the audit log, which runs in `nursery`; None if it is off. Raises InvalidArgument if
    the file cannot be used, unless it is the disk that fails."""
    if not config.audit_file:
        return None
    file = AuditFile(
        config.audit_file, bytes_max=config.audit_file_bytes_max, files_max=config.audit_files_max
    )
    one_at_a_time = trio.CapacityLimiter(1)

    async def write(lines: Sequence[bytes]) -> int:
        return await trio.to_thread.run_sync(
            file.write, lines, abandon_on_cancel=True, limiter=one_at_a_time
        )

    try:
        await trio.to_thread.run_sync(file.open)
    except OSError as error:
        if error.errno not in _DISK_FAILS:
            raise InvalidArgument(
                f"the audit file {config.audit_file} cannot be opened: {error.strerror}. Cure:"
                " change audit_file, or let this user write there"
            ) from error
        _log.error("audit log not written path=%s cause=%s", config.audit_file, error)
    log = AuditLog(write, now_ms=_wall_ms)
    log.bookie_id = config.bookie_id  # an empty one is known when the bookie listens
    nursery.start_soon(log.run)
    return log


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def _run_bookie(
    bookie: Bookie,
    serving: trio.CancelScope,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    await bookie.run(task_status)
    serving.cancel()


async def _open_http(config: BookieConfig) -> list[trio.SocketListener]:
    """Raises InvalidArgument if the address cannot be used; BookieRuns if that is because this
    bookie is running already."""
    try:
        return await open_http(config.http_host, config.http_port)
    except InvalidArgument:
        disk = ReadOnlyDisk()
        try:
            await check_not_running(config, disk)
        finally:
            disk.close()
        raise


@asynccontextmanager
async def _open_store_with_retries(
    config: BookieConfig, disk: Disk
) -> AsyncIterator[MetadataStore]:
    """Retries until the metadata store can be reached: giving up would not help.

    The first start of a bookie, with empty disks, may make a cluster. Any other one may not, nor
    leave a file behind: if there is no cluster, the address is wrong. Raises CookieMismatch then.
    """
    may_create = False
    tls = config.metadata_context()
    access = load_access(config.zookeeper_acl, config.zookeeper_credentials_file, {})
    async with AsyncExitStack() as stack:
        while True:
            opened = open_store(
                config.metadata_uri,
                session_timeout_ms=config.session_timeout_ms,
                root=config.ledgers_root,
                may_create=may_create,
                tls=tls,
                access=access,
            )
            try:
                store = await stack.enter_async_context(opened)
                break
            except NoSuchCluster as error:
                await check_has_no_cluster(config, disk)
                _log.info("bookie makes a cluster at=%s: %s", config.metadata_uri, error)
                may_create = True
                continue
            except MetadataUnavailable as error:
                _log.warning("bookie waits for its metadata store cause=%s", error)
            await trio.sleep(_STORE_RETRY_S)
        yield store


async def _heed_signals(
    signals: AsyncIterator[int], stopped: list[Callable[[], None]], reopen_log: Callable[[], bool]
) -> None:
    is_on_terminal = os.isatty(2)
    async for number in signals:
        if number == signal.SIGHUP and not is_on_terminal:
            try:
                is_reopened = reopen_log()
            except InvalidArgument as error:
                _log.error("log file not reopened signal=SIGHUP cause=%s", error)
            else:
                what = "log file reopened" if is_reopened else "no log file to reopen"
                _log.info("%s signal=SIGHUP", what)
            continue
        _log.info("bookie stops signal=%s", signal.Signals(number).name)
        if stopped:
            stopped.pop()()  # the next signal does not wait for answers


async def _die_with_supervisor() -> None:
    """Ends the process when its supervisor was killed, as a crash does."""
    await wait_starter_gone()
    _log.critical("bookie shuts down cause=its supervisor is gone")
    os._exit(_EXIT_ERROR)


def _tune_interpreter() -> None:
    """Lets the collector run seldom, as few objects live per entry, and switches threads often, as
    the journal's thread must get the interpreter soon."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    tune_allocator()


def main() -> NoReturn:
    """Runs the bookie of a supervisor and ends the process with its exit code."""
    open_standard_streams()
    try:
        sys.exit(run_bookie_process(Path(sys.argv[1]), is_child=True))
    except LedgerError as error:
        sys.exit(shown_text(f"bookie: {error}"))


if __name__ == "__main__":
    main()
