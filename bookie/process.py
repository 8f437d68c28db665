"""One bookie as a process: real drivers, log, signals, exit code.

A composition root, also of the supervisor's children (`bookie.standalone.supervisor`), which it
starts as `python -m bookie.process CONFIG`. Prints "ready BOOKIE-ID" once the bookie is registered.
A child ends at once when the pipe on its stdin does: then its supervisor is dead.

How a bookie has the C library's allocator keep memory, and when it gives some back.

Does nothing where the C library is not glibc: its neighbours have no such controls, or need none.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig, load_bookie_config
from bookie.monitoring.http import http_address, open_http, serve_http
from bookie.monitoring.snapshot import Observer
from bookie.startup.power_loss import boot_id
from bookie.storage.disk.real_disk import RealDisk
from bookie.storage.index.rocksdb import index_opener
from ledger.cli.supervised import wait_starter_gone
from ledger.errors import LedgerError, MetadataUnavailable
from ledger.metastore import MetadataStore, open_store
from ledger.runtime.network import TcpNetwork

# glibc's names for: give memory back late, ask for much at once; map by themselves what is about as
# large as one piece of reading ahead, because such pieces live long, and holes of their size fill
# with smaller ones; and one arena for all threads, as each arena keeps what its largest user ever
# took, and work goes to another thread each time.
_OPTIONS = ((-1, 1 << 30), (-2, 64 << 20), (-3, 200 << 10), (-8, 1))
_INTERVAL_S = 60.0


def tune_allocator() -> None:
    """For buffers that come and go at a high rate: they are reused rather than given back."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        for option, value in _OPTIONS:
            mallopt(option, value)


def give_memory_back() -> None:
    """Gives the system what is free in the middle of the heap too, in whole pages.

    A busy bookie takes it again at its next checkpoint; one that has become idle does not keep
    what its busiest minute took. About a millisecond, in which other threads that allocate wait.
    """
    malloc_trim = _of_glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


async def give_memory_back_regularly() -> None:
    """Never returns. Seldom enough that fetching the pages again costs next to nothing."""
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
# Objects until the youngest are looked at, then how many such rounds until the middle ones are,
# and so on. Each object that stays is looked at once in either case; with very many ledgers, where
# they stay by the hundred thousand, small rounds divide that into steps of a few milliseconds.
_GC_THRESHOLDS = (5000, 2, 17_000)


def run_bookie_process(config_file: Path, *, is_child: bool) -> int:
    """Runs the bookie until SIGTERM or SIGINT; returns the process's exit code.

    Raises InvalidArgument for wrong settings.
    """
    config = load_bookie_config(config_file, os.environ, {})
    _log_to_stderr()
    _tune_interpreter()
    try:
        trio.run(_serve, config, is_child)
    except BaseExceptionGroup as group:
        expected, bugs = group.split((LedgerError, OSError))
        if bugs is not None:
            raise
        assert expected is not None
        _log.critical("bookie ends cause=%s", _first_cause(expected))
        return _EXIT_ERROR
    except (LedgerError, OSError) as error:
        _log.critical("bookie ends cause=%s", error)
        return _EXIT_ERROR
    return 0


def _first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


async def _serve(config: BookieConfig, is_child: bool) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            if is_child:
                nursery.start_soon(_die_with_supervisor)
            stopped = [nursery.cancel_scope]
            nursery.start_soon(_stop_on_signal, signals, stopped)
            listeners = await open_http(config.http_host, config.http_port)
            async with _open_store_with_retries(config) as store, trio.open_nursery() as serving:
                stopped.append(serving.cancel_scope)  # the store is still there for leaving
                disk = RealDisk()
                bookie = Bookie(
                    config,
                    network=TcpNetwork(),
                    disk=disk,
                    key_value=index_opener(
                        config.index_cache_bytes, len(config.ledger_directories)
                    ),
                    store=store,
                    now_ms=lambda: time.time_ns() // 1_000_000,
                    rng=random.SystemRandom(),
                    http=http_address(listeners, config.advertised_host or config.host),
                    boot_id=boot_id(),
                )
                serving.start_soon(serve_http, listeners, Observer(bookie, disk))
                bookie_id = await serving.start(bookie.run)
                serving.start_soon(give_memory_back_regularly)
                gc.collect()
                gc.freeze()
                sys.stdout.write(f"ready {bookie_id}\n")
                sys.stdout.flush()
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _open_store_with_retries(config: BookieConfig) -> AsyncIterator[MetadataStore]:
    """Waits for a metadata store that is not there yet: giving up would help nobody."""
    async with AsyncExitStack() as stack:
        while True:
            opened = open_store(config.metadata_uri, session_timeout_ms=config.session_timeout_ms)
            try:
                store = await stack.enter_async_context(opened)
                break
            except MetadataUnavailable as error:
                _log.warning("bookie waits for its metadata store cause=%s", error)
            await trio.sleep(_STORE_RETRY_S)
        yield store


async def _stop_on_signal(signals: AsyncIterator[int], stopped: list[trio.CancelScope]) -> None:
    async for number in signals:
        _log.info("bookie stops signal=%s", signal.Signals(number).name)
        stopped[-1].cancel()
        return


async def _die_with_supervisor() -> None:
    """A killed supervisor must leave nothing behind. It is a crash: nothing is tidied up."""
    await wait_starter_gone()
    _log.critical("bookie ends cause=its supervisor is gone")
    os._exit(_EXIT_ERROR)


def _tune_interpreter() -> None:
    """Few objects live per entry, so the collector can be lazy; the journal's thread must get
    the interpreter soon."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    tune_allocator()


def _log_to_stderr() -> None:
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    try:
        sys.exit(run_bookie_process(Path(sys.argv[1]), is_child=True))
    except LedgerError as error:
        sys.exit(f"bookie: {error}")
