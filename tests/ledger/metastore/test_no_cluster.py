"""An address without a cluster is reported as such, and looking for one creates nothing.

What may be a damaged cluster, or cannot be looked at, is an error of another kind: doubt is not
absence.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient

from ledger.client import LedgerClient
from ledger.errors import InvalidArgument, LedgerError, MetadataCorrupt, NoSuchCluster
from ledger.metastore import open_store
from ledger.metastore.sqlite.store import open_sqlite
from ledger.metastore.zookeeper.address import parse_address
from tests.clusters import make_cluster
from tests.zookeeper import RunningZooKeeper


def content(directory: Path) -> dict[str, bytes]:
    """Returns all files below a directory with their bytes."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


async def refusal(uri: str) -> LedgerError:
    """Returns the error of connecting to `uri`."""
    with pytest.raises(LedgerError) as caught:
        async with LedgerClient.connect(uri):
            raise AssertionError("must not be entered")
    assert "\n" not in str(caught.value)
    return caught.value


async def no_cluster(uri: str) -> str:
    error = await refusal(uri)
    assert type(error) is NoSuchCluster, repr(error)
    assert str(error).startswith("there is no cluster at "), error
    assert "Cure: " in str(error)
    return str(error)


async def test_a_missing_file_is_no_cluster_and_is_not_created(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path}/typo.db"
    text = await no_cluster(uri)
    assert f"there is no cluster at {uri}: {tmp_path}/typo.db does not exist." in text
    assert content(tmp_path) == {}


@pytest.mark.parametrize("name", ["clustr.db", "cluster.db ", "Cluster.db", "cluster.db\u00a0"])
async def test_a_mistyped_name_is_answered_with_the_right_one(tmp_path: Path, name: str) -> None:
    await make_cluster(f"sqlite://{tmp_path}/cluster.db")
    before = content(tmp_path)
    text = await no_cluster(f"sqlite://{tmp_path}/{name}")
    assert f"did you mean sqlite://{tmp_path}/cluster.db?" in text
    assert name == name.strip() or repr(f"{tmp_path}/{name}") in text
    assert content(tmp_path) == before


async def test_the_directory_of_a_cluster_is_answered_with_its_file(tmp_path: Path) -> None:
    await make_cluster(f"sqlite://{tmp_path}/cluster.db")
    text = await no_cluster(f"sqlite://{tmp_path}")
    assert "is a directory, not a file" in text
    assert f"did you mean sqlite://{tmp_path}/cluster.db?" in text


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    text = await no_cluster(f"sqlite://{tmp_path}/no/such/cluster.db")
    assert f"the directory {tmp_path}/no/such does not exist" in text


async def test_a_relative_path_is_shown_as_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"{tmp_path}/typo.db does not exist" in await no_cluster("sqlite://typo.db")
    await make_cluster(f"sqlite://{tmp_path}/cluster.db")
    assert f"did you mean sqlite://{tmp_path}/cluster.db?" in await no_cluster("sqlite://clustr.db")
    without_slash = f"sqlite://{str(tmp_path).lstrip('/')}/cluster.db"
    assert f"did you mean sqlite://{tmp_path}/cluster.db?" in await no_cluster(without_slash)


async def test_an_empty_file_is_no_cluster_and_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "c.db").touch()
    assert "is empty (0 bytes)" in await no_cluster(f"sqlite://{tmp_path}/c.db")
    assert content(tmp_path) == {"c.db": b""}


async def test_a_database_without_content_is_no_cluster_and_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    with closing(sqlite3.connect(file)) as empty:
        empty.execute("PRAGMA journal_mode = WAL")
    before = content(tmp_path)
    assert before["c.db"]
    assert "without content" in await no_cluster(f"sqlite://{file}")
    assert content(tmp_path) == before


async def test_a_metadata_file_in_which_nobody_made_a_cluster_is_none(tmp_path: Path) -> None:
    file = tmp_path / "c.db"
    async with open_sqlite(str(file)) as store:
        await store.create("/another/root", b"")
    assert "no node '/ledgers'" in await no_cluster(f"sqlite://{file}")


@pytest.mark.parametrize("application", [0, 1234567])
async def test_the_database_of_another_program_in_use_is_refused_untouched(
    tmp_path: Path, application: int
) -> None:
    file = tmp_path / "theirs.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as theirs:
        theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute(f"PRAGMA application_id = {application}")
        theirs.execute("CREATE TABLE nodes(x)")
        theirs.execute("INSERT INTO nodes VALUES('in the log')")
        before = content(tmp_path)
        assert before["theirs.db-wal"]
        error = await refusal(f"sqlite://{file}")
        after = content(tmp_path)
    assert type(error) is MetadataCorrupt
    assert "an SQLite file of another program" in str(error)
    for name in ("theirs.db", "theirs.db-wal"):
        assert after[name] == before[name]


async def test_a_log_that_another_program_left_is_not_put_into_its_file(tmp_path: Path) -> None:
    script = (
        "import os, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "db.execute('PRAGMA journal_mode = WAL')\n"
        "db.execute('CREATE TABLE t(x)')\n"
        "os._exit(0)\n"  # as if it was killed
    )
    await trio.run_process([sys.executable, "-c", script, str(tmp_path / "t.db")])
    before = content(tmp_path)
    assert before["t.db-wal"]
    assert "another program" in str(await refusal(f"sqlite://{tmp_path}/t.db"))
    after = content(tmp_path)
    assert {name: after[name] for name in ("t.db", "t.db-wal")} == {
        name: before[name] for name in ("t.db", "t.db-wal")
    }


@pytest.mark.parametrize("data", [b"x", b"precious text " * 1000, bytes(8192)])
async def test_a_file_that_is_no_database_is_doubt_and_stays_as_it_is(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "c.db").write_bytes(data)
    error = await refusal(f"sqlite://{tmp_path}/c.db")
    assert type(error) is MetadataCorrupt
    assert "is not a metadata file, or its beginning is damaged" in str(error)
    assert content(tmp_path) == {"c.db": data}


async def test_a_pipe_and_a_socket_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "socket"):
            assert "is not a regular file" in await no_cluster(f"sqlite://{tmp_path}/{name}")


@pytest.mark.parametrize("path", ["/tmp/c\0.db", f"/tmp/{'x' * 300}.db", "/proc/self/fd/a/b\0"])
async def test_what_can_be_no_path_is_an_invalid_argument(path: str) -> None:
    assert type(await refusal(f"sqlite://{path}")) is InvalidArgument


def test_a_place_that_may_not_be_looked_at_is_not_reported_as_absent() -> None:
    script = (
        "import os, sys, trio\n"
        "from ledger.client import LedgerClient\n"
        "async def main():\n"
        "    async with LedgerClient.connect(sys.argv[1]): pass\n"
        "try: trio.run(main)\n"  # imports every module that is needed
        "except Exception as error: print(type(error).__name__)\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: trio.run(main)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        closed = Path(directory) / "closed"
        closed.mkdir()
        closed.chmod(0o000)
        said = subprocess.run(
            [sys.executable, "-c", script, f"sqlite://{closed}/cluster.db"],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        closed.chmod(0o700)
    assert "\nInvalidArgument cannot open " in said.stdout, said
    assert "Permission denied" in said.stdout


async def test_a_cluster_is_found_by_all_forms_of_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make_cluster(f"sqlite://{tmp_path}/cluster.db")
    monkeypatch.chdir(tmp_path)
    for uri in (f"sqlite:///{tmp_path}/cluster.db", "sqlite://cluster.db", "sqlite://./cluster.db"):
        async with LedgerClient.connect(uri) as client:
            assert await client.bookies.instance_id() == instance


async def test_a_cluster_whose_first_page_is_only_in_the_log_is_found(tmp_path: Path) -> None:
    file = tmp_path / "cluster.db"
    async with open_store(f"sqlite://{file}", may_create=True):
        assert file.read_bytes()[68:72] == bytes(4)  # the mark of our files is not there yet
        await make_cluster(f"sqlite://{file}")
        async with LedgerClient.connect(f"sqlite://{file}") as client:
            assert await client.list_ledgers() == []


async def test_looking_at_a_file_ends_no_lock_that_this_process_has_on_it(tmp_path: Path) -> None:
    """POSIX ends all locks of a process on a file when it closes any descriptor of it."""
    file = tmp_path / "cluster.db"
    await make_cluster(f"sqlite://{file}")
    script = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
        "try: print(*db.execute('PRAGMA journal_mode = DELETE').fetchone())\n"
        "except sqlite3.OperationalError as error: print(error)\n"
    )
    async with LedgerClient.connect(f"sqlite://{file}"):
        async with LedgerClient.connect(f"sqlite://{file}"):
            pass
        await no_cluster(f"sqlite://{tmp_path}/clustr.db")
        said = await trio.run_process(
            [sys.executable, "-c", script, str(file)], capture_stdout=True
        )
    assert said.stdout == b"database is locked\n"


def tree_below(zookeeper: RunningZooKeeper, path: str) -> list[str]:
    client = KazooClient(hosts=zookeeper.address)
    client.start()
    try:
        found, todo = [], [path]
        while todo:
            here = todo.pop()
            if client.exists(here):
                found.append(here)
                todo += [f"{here.rstrip('/')}/{name}" for name in client.get_children(here)]
        return sorted(found)
    finally:
        client.stop()
        client.close()


@pytest.mark.zookeeper
@pytest.mark.parametrize("suffix", ["", "%20", "x", "-é", "/deeper/ledgers"])
async def test_a_root_without_a_cluster_is_none_and_is_not_created(
    shared_zookeeper: RunningZooKeeper, zookeeper_uri: str, suffix: str
) -> None:
    if suffix:
        await make_cluster(zookeeper_uri)
    top = parse_address(zookeeper_uri).chroot
    before = tree_below(shared_zookeeper, top)
    assert "has no node" in await no_cluster(zookeeper_uri + suffix)
    assert tree_below(shared_zookeeper, top) == before


@pytest.mark.zookeeper
@pytest.mark.parametrize("left", ["INSTANCEID", "LAYOUT", "available"])
async def test_a_cluster_that_other_programs_made_need_not_be_complete(
    zookeeper_uri: str, left: str
) -> None:
    await make_cluster(zookeeper_uri)
    async with open_store(zookeeper_uri, may_create=True) as store:
        await store.delete("/ledgers/available/readonly")
        for name in {"INSTANCEID", "LAYOUT", "available"} - {left}:
            await store.delete(f"/ledgers/{name}")
    async with LedgerClient.connect(zookeeper_uri) as client:
        assert await client.list_ledgers() == []
