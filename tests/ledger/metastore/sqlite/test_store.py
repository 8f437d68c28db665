"""The SQLite file: refused files, durability, and the end of sessions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import aclosing
from functools import partial
from pathlib import Path

import pytest
import trio

from ledger.errors import InvalidArgument, MetadataCorrupt, MetadataUnavailable
from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.base import Create, Delete
from ledger.metastore.bookies import BookieInfo, BookieRegistry, encode_info
from ledger.metastore.sqlite.liveness import ProcessIdentity, identity_of, is_gone
from ledger.metastore.sqlite.store import open_sqlite
from ledger.metastore.sqlite.tree import SqliteTree


async def refused(path: Path) -> str:
    """Returns the error of opening the file."""
    with pytest.raises((InvalidArgument, MetadataCorrupt)) as caught:
        async with open_sqlite(str(path)):
            raise AssertionError("must not be entered")
    return str(caught.value)


async def test_written_data_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    file = str(tmp_path / "c.db")
    async with open_sqlite(file) as store:
        await store.create("/a/b", b"x")
        assert await store.next_id("/i") == 0
    async with open_sqlite(file) as store:
        assert (await store.get("/a/b")).data == b"x"
        assert await store.next_id("/i") == 1


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    assert f"the directory {tmp_path / 'no'} does not exist" in await refused(
        tmp_path / "no" / "c.db"
    )


async def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    assert "is a directory" in await refused(tmp_path)


async def test_bytes_that_are_not_sqlite_are_refused_untouched(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    file.write_bytes(b"precious text " * 100)
    assert "is not a metadata file" in await refused(file)
    assert file.read_bytes() == b"precious text " * 100


async def test_the_file_of_another_program_is_refused_untouched(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    theirs = sqlite3.connect(file)
    theirs.execute("CREATE TABLE nodes(x)")
    theirs.commit()
    theirs.close()
    before = file.read_bytes()
    assert "another program" in await refused(file)
    assert file.read_bytes() == before


async def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)):
        pass
    changed = sqlite3.connect(file)
    changed.execute("PRAGMA user_version = 99")
    changed.close()
    assert "schema version 99, this program knows 1" in await refused(file)


async def test_a_damaged_file_is_corrupt_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)) as store:
        for number in range(50):
            await store.create(f"/a/{number}", bytes(1000))
    data = bytearray(file.read_bytes())
    data[4096:] = b"\x55" * (len(data) - 4096)
    file.write_bytes(data)
    with pytest.raises(MetadataCorrupt, match="damaged"):
        async with open_sqlite(str(file)) as store:
            await store.children("/a")


def test_a_file_that_may_not_be_written_is_refused() -> None:
    # Root may write everything, so it becomes another user, in a directory readable by that user.
    script = (
        "import os, sys, trio\n"
        "from ledger.metastore.sqlite.store import open_sqlite\n"
        "async def main():\n"
        "    async with open_sqlite(sys.argv[1]): pass\n"
        "trio.run(main)\n"  # as its owner; this also imports every module that is needed
        "os.chmod(sys.argv[1], 0o444)\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: trio.run(main)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        said = subprocess.run(
            [sys.executable, "-c", script, f"{directory}/c.db"],
            cwd=Path(__file__).parents[4],
            capture_output=True,
            text=True,
            check=False,
        )
    assert said.stdout.startswith("InvalidArgument"), said
    assert "may not write it" in said.stdout


async def test_a_lock_held_too_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.metastore.sqlite.tree.BUSY_TIMEOUT_S", 0.05)
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)) as store:
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match="locked by other processes"):
            await store.create("/a", b"")
        other.execute("ROLLBACK")
        other.close()
        await store.create("/a", b"")


async def test_a_store_whose_session_others_ended_continues_with_a_new_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)) as store:
        await store.create("/e", b"old", is_ephemeral=True)
        _end_all_sessions(file)
        with trio.fail_after(10):
            async with aclosing(store.watch("/e")) as nodes:
                async for node in nodes:
                    if node is None:
                        break
            # This needs a session, so it detects the loss before the next heartbeat would.
            await store.create("/e", b"new", is_ephemeral=True)
        assert (await store.get("/e")).data == b"new"


async def test_a_lost_session_is_noticed_by_the_heartbeat(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file), session_timeout_ms=400):
        _end_all_sessions(file)
        with trio.fail_after(10):
            while not _count_sessions(file):  # noqa: ASYNC110
                await trio.sleep(0.01)  # no event in this process reports the loss


def _count_sessions(file: Path) -> int:
    other = sqlite3.connect(file)
    (count,) = other.execute("SELECT count(*) FROM sessions").fetchone()
    other.close()
    return int(count)


def _end_all_sessions(file: Path) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("DELETE FROM nodes WHERE owner IS NOT NULL")
    other.execute("DELETE FROM sessions")
    other.execute("UPDATE changes SET sequence = sequence + 1")
    other.execute("COMMIT")
    other.close()


def test_a_session_dies_of_silence_on_the_shared_clock(tmp_path: Path) -> None:
    clock_ms = 1000
    here = identity_of(os.getpid())
    elsewhere = ProcessIdentity(here.boot_id, "another container", 7, 7)

    def opened(identity: ProcessIdentity) -> SqliteTree:
        return SqliteTree(
            str(tmp_path / "c.db"),
            session_timeout_ms=500,
            now_ms=lambda: 0,
            shared_clock_ms=lambda: clock_ms,
            identity=identity,
        )

    mine, other = opened(here), opened(elsewhere)
    try:
        session, theirs = mine.begin_session(), other.begin_session()
        for _ in range(5):
            assert mine.expire_dead() == 0
            clock_ms += 100
            assert mine.beat(session)
        assert mine.expire_dead() == 0
        clock_ms += 1
        assert mine.expire_dead() == 1
        assert not other.beat(theirs)
        clock_ms += 5000  # this process lives after its long sleep and does not expire itself
        assert mine.expire_dead() == 0
        assert mine.beat(session)
    finally:
        mine.close()
        other.close()


async def test_no_session_expires_because_the_file_was_locked(tmp_path: Path) -> None:
    # A process that was stopped in the middle of a change locked it: when that process continued,
    # the first one that got the lock expired all bookies of the cluster.
    file = tmp_path / "c.db"
    async with (
        open_sqlite(str(file), session_timeout_ms=500) as one,
        open_sqlite(str(file), session_timeout_ms=500) as two,
    ):
        await one.create("/e/one", b"", is_ephemeral=True)
        await two.create("/e/two", b"", is_ephemeral=True)
        born = [await one.get(f"/e/{name}") for name in ("one", "two")]
        stopped = sqlite3.connect(file, isolation_level=None)
        for _ in range(3):
            stopped.execute("BEGIN IMMEDIATE")
            await trio.sleep(1)  # two timeouts of real time
            stopped.execute("ROLLBACK")
            for _ in range(20):
                assert await one.children("/e") == await two.children("/e") == ["one", "two"]
                await trio.sleep(
                    0.03
                )  # longer than a timeout in total, so that sessions may be expired
        stopped.close()
        assert born == [await two.get(f"/e/{name}") for name in ("one", "two")]


async def test_a_successor_elsewhere_gets_the_id_of_a_bookie_that_died_in_a_container(
    tmp_path: Path,
) -> None:
    # /proc does not show that it is gone, so the successor has to wait for a timeout first.
    path = str(tmp_path / "c.db")
    node = "/ledgers/available/b1"
    info = BookieInfo("10.0.0.1", 3181)
    contained = ProcessIdentity(identity_of(os.getpid()).boot_id, "another container", 7, 7)
    died = SqliteTree(
        path,
        session_timeout_ms=600,
        now_ms=lambda: 0,
        shared_clock_ms=lambda: time.monotonic_ns() // 1_000_000 - 60_000,
        identity=contained,
    )
    session = died.begin_session()
    claim = Create(node, encode_info(info), is_ephemeral=True)
    assert died.commit_together([lambda: died.apply([claim], session)]) == [[0]]
    died.close()
    moved = BookieInfo("10.0.0.2", 3181)
    async with open_sqlite(path, session_timeout_ms=600) as store:
        registry = BookieRegistry(store)
        began = trio.current_time()
        async with registry.register("b1", moved, takeover_timeout_s=20):
            assert trio.current_time() - began > 0.5
            assert await registry.available() == {"b1": moved}


async def test_only_what_ends_with_a_session_is_not_synced(tmp_path: Path) -> None:
    """A power failure ends all sessions. What is not synced is, with the next change that is."""
    async with open_sqlite(str(tmp_path / "c.db")) as store:

        def is_synced() -> bool:
            (level,) = store._file._db.execute("PRAGMA synchronous").fetchone()
            return int(level) >= 2

        lasting, ephemeral = Create("/a", b""), Create("/b", b"", is_ephemeral=True)
        await store.transaction([lasting])
        assert is_synced()
        await store.transaction([ephemeral])
        assert not is_synced()
        await store.delete("/b")
        assert is_synced(), "nobody knows before what it deletes"
        await store.create("/c/1", b"", is_ephemeral=True)
        assert not is_synced()
        await store.transaction([Delete("/a"), ephemeral])
        assert is_synced()
        await store.create("/c/2", b"", is_ephemeral=True)
        await store.create_numbered("/n", b"")
        assert is_synced(), "a number is never taken twice"
        async with trio.open_nursery() as nursery:  # one visit of the thread for both
            nursery.start_soon(partial(store.create, "/c/3", b"", is_ephemeral=True))
            nursery.start_soon(store.create, "/d", b"")
        assert is_synced()


def test_a_process_is_gone_only_if_that_is_proven() -> None:
    here = identity_of(os.getpid())
    assert here.start_ticks > 0
    assert not is_gone(here, here)
    later = ProcessIdentity(here.boot_id, here.pid_space, here.pid, here.start_ticks + 1)
    assert is_gone(later, here)
    rebooted = ProcessIdentity("another boot", here.pid_space, here.pid, here.start_ticks)
    assert is_gone(rebooted, here)
    contained = ProcessIdentity(here.boot_id, "another", 1, 1)
    assert not is_gone(contained, here)
    unknown = ProcessIdentity("", "", here.pid, 0)
    assert not is_gone(unknown, here)
    assert not is_gone(later, unknown)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        born = identity_of(child.pid)
        assert not is_gone(born, here)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(born, here), "a zombie is gone"
    assert is_gone(born, here)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("c.db", "has no scheme"),
        ("etcd://x", "unknown scheme 'etcd'"),
        ("zk+hierarchical://h:2181", "has no path"),
        ("sqlite:", "must start with sqlite://"),
        ("sqlite://", "names no file"),
        ("sqlite:///var/", "names no file"),
        ("memory:x", "nothing after it"),
    ],
)
async def test_addresses_that_no_driver_can_serve_are_refused(uri: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        async with open_store(uri, may_create=True):
            raise AssertionError("must not be entered")


async def test_addresses_choose_the_driver(tmp_path: Path) -> None:
    assert ClusterAddress.parse("sqlite:///tmp/c.db").sqlite_path == "/tmp/c.db"
    assert ClusterAddress.parse("sqlite:////tmp/c.db").sqlite_path == "/tmp/c.db"
    assert ClusterAddress.parse("sqlite://c.db").sqlite_path == "c.db"
    async with open_store(f"sqlite:///{tmp_path}/four.db", may_create=True) as store:
        await store.create("/a", b"")
    assert (tmp_path / "four.db").exists()
    file = tmp_path / "odd name?#%41.db"
    async with open_store(f"sqlite://{file}", may_create=True) as store:
        await store.create("/a", b"")
    assert file.exists()
    async with (
        open_store("memory:", may_create=True) as one,
        open_store("memory:", may_create=True) as two,
    ):
        await one.create("/a", b"")
        assert await two.children("/") == []


async def test_the_block_raises_what_its_body_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_store(f"sqlite://{tmp_path / 'c.db'}", may_create=True):
            raise KeyError("mine")
    with trio.move_on_after(0.05) as scope:
        async with open_store(f"sqlite://{tmp_path / 'c.db'}", may_create=True):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_busy_event_loop_loses_no_session(tmp_path: Path) -> None:
    file = str(tmp_path / "c.db")
    async with (
        open_sqlite(file, session_timeout_ms=400) as store,
        open_sqlite(file, session_timeout_ms=400) as other,
    ):
        await store.create("/e", b"", is_ephemeral=True)
        time.sleep(1.5)  # noqa: ASYNC251 - the loop is at work, and does nothing else
        await other.children("/")  # searches for dead sessions
        await other.get("/e")


def modes_in(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


async def test_the_files_of_a_new_store_are_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with open_sqlite(str(tmp_path / "c.db")) as store:
            await store.create("/a", b"the password of a ledger")
            modes = modes_in(tmp_path)
    finally:
        os.umask(before)
    assert modes == {"c.db": 0o600, "c.db-wal": 0o600, "c.db-shm": 0o600}


async def test_the_mode_of_a_store_that_exists_is_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)):
        pass
    file.chmod(0o664)
    async with open_sqlite(str(file)):
        pass
    assert file.stat().st_mode & 0o777 == 0o664
