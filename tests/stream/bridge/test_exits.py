"""Programs that exit without closing or that fork neither hang nor print errors."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie.testing.in_process import InProcessCluster
from ledger.errors import LedgerClosed
from stream.blocking import LATEST, Namespace, StreamReader
from tests.stream.bridge.test_bridge import interrupted_after
from tests.tidy.checkout import ROOT


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    directory: Path = tmp_path_factory.mktemp("endings")
    with InProcessCluster(directory) as running:
        yield running


def run_to_success(program: str, cluster: InProcessCluster) -> str:
    """Runs a program, checks that it succeeds without errors, and returns its output."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), cluster.uri],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_interpreter_ends_with_a_connection_open(cluster: InProcessCluster) -> None:
    program = """
        import sys, threading
        from ledger.errors import LedgerClosed
        from stream.blocking import Namespace

        kept = []

        def enter(block):
            kept.append(block)
            return block.__enter__()

        namespace = enter(Namespace.connect(sys.argv[1], "open", create=True))
        writer = enter(namespace.writer("s", create=True))
        writer.append(b"x")
        reader = enter(namespace.reader("s"))
        print(next(reader).value)

        def follow():
            try:
                next(reader)
            except LedgerClosed:
                pass

        threading.Thread(target=follow, daemon=True).start()
        """
    assert run_to_success(program, cluster) == "b'x'\n"


def test_asyncio_ends_with_a_connection_open(cluster: InProcessCluster) -> None:
    program = """
        import asyncio, sys
        from stream.aio import Namespace

        kept = []

        async def main():
            kept.append(Namespace.connect(sys.argv[1], "open-aio", create=True))
            namespace = await kept[0].__aenter__()
            kept.append(namespace.writer("s", create=True))
            writer = await kept[1].__aenter__()
            await writer.append(b"x")
            print("appended")

        asyncio.run(main())
        """
    assert run_to_success(program, cluster) == "appended\n"


def test_a_forked_child_reconnects(cluster: InProcessCluster) -> None:
    program = """
        import os, sys, warnings
        from ledger.errors import LedgerClosed
        from stream.blocking import Namespace

        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        with Namespace.connect(sys.argv[1], "forked", create=True) as namespace:
            namespace.create_stream("s")
            child = os.fork()
            if not child:
                try:
                    namespace.list_streams()
                except LedgerClosed as error:
                    assert "before fork()" in str(error), error
                with Namespace.connect(sys.argv[1], "forked") as own:
                    with own.writer("s") as writer:
                        writer.append(b"of the child")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(namespace.read_last("s", 1)[0].value)
        """
    assert run_to_success(program, cluster) == "b'of the child'\n"


def test_ctrl_c_at_the_end_of_a_stream(cluster: InProcessCluster) -> None:
    seen: list[bytes] = []

    def follow(reader: StreamReader) -> None:
        for record in reader:
            seen.append(record.value)

    with (
        Namespace.connect(cluster.uri, "interrupted", create=True) as namespace,
        namespace.writer("s", create=True) as writer,
        namespace.reader("s") as reader,
    ):
        writer.append(b"1")
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
            follow(reader)
        writer.append(b"2")
        while len(seen) < 2:
            seen.append(next(reader).value)
    assert seen == [b"1", b"2"]


def test_ctrl_c_in_an_append_that_waits(cluster: InProcessCluster) -> None:
    with Namespace.connect(cluster.uri, "interrupted-append", create=True) as namespace:
        namespace.set_policy(linger_ms=60_000)
        with namespace.writer("s", create=True) as writer:
            with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
                writer.append(b"unknown")
            writer.append_nowait(b"kept")
            writer.flush()
        assert namespace.read_last("s", 1)[0].value == b"kept"


def append_and_wait(namespace: Namespace) -> None:
    with (
        namespace.writer("s", create=True) as writer,
        namespace.reader("s", start=LATEST) as reader,
    ):
        writer.append(b"1")
        next(reader)
        with interrupted_after(0.1):
            next(reader)


def test_ctrl_c_through_a_block_leaves_the_stream_to_the_next_writer(
    cluster: InProcessCluster,
) -> None:
    with Namespace.connect(cluster.uri, "interrupted-block", create=True) as namespace:
        with pytest.raises(KeyboardInterrupt):
            append_and_wait(namespace)
        with namespace.writer("s") as writer:
            writer.append(b"2")
        assert [record.value for record in namespace.read_last("s", 2)] == [b"1", b"2"]


def test_another_thread_closes_a_reader(cluster: InProcessCluster) -> None:
    with Namespace.connect(cluster.uri, "closed-elsewhere", create=True) as namespace:
        namespace.create_stream("s")
        with namespace.reader("s") as reader:
            timer = threading.Timer(0.1, reader.close)
            timer.start()
            with pytest.raises(LedgerClosed, match="closed"):
                next(reader)
            timer.join()


def test_a_child_forked_while_a_thread_began_to_wait(cluster: InProcessCluster) -> None:
    program = """
        import os, sys, threading, warnings
        from stream.blocking import Namespace, bridge

        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        with Namespace.connect(sys.argv[1], "forked-late", create=True) as namespace:
            is_held, may_end = threading.Event(), threading.Event()

            def hold():
                with bridge._joining:
                    is_held.set()
                    may_end.wait()

            thread = threading.Thread(target=hold)
            thread.start()
            is_held.wait()
            child = os.fork()
            if not child:
                with Namespace.connect(sys.argv[1], "forked-late") as own:
                    own.create_stream("s")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            may_end.set()
            thread.join()
            print(namespace.list_streams())
        """
    assert run_to_success(program, cluster) == "['s']\n"
