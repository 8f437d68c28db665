"""`bookie decommission` and `bookie replace` with real processes, under load: they end by
themselves, or say within two seconds what holds them up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ledger.client import LedgerClient
from ledger.core.metadata import LedgerMetadata
from ledger.errors import NoSuchLedger
from ledger.metastore import open_store
from ledger.metastore.decommissions import PATH
from ledger.options import ClientOptions
from tests.system.cluster import PATIENCE_S, StandaloneCluster, environment, wait_for, wait_gone
from tests.system.healing.clusters import bookie_of, copies_lacking, new_cluster, status_of
from tests.system.test_verify import is_checkpointed, rot

pytestmark = pytest.mark.system

_STREAM = "demo/load"
_SAID_WITHIN_S = 2.0
_IDLE_S = 1.0
StartHealing = Callable[..., StandaloneCluster]


@pytest.fixture
def start_healing(tmp_path: Path) -> Iterator[StartHealing]:
    """Returns a function that starts a cluster whose bookies stay down."""
    started: list[StandaloneCluster] = []

    def start(bookies: int, **settings: Any) -> StandaloneCluster:
        settings = {"lost_bookie_recovery_delay_s": 1, **settings}
        cluster = new_cluster(tmp_path / "cluster", bookies, "--no-restart", **settings)
        started.append(cluster)
        cluster.start()
        return cluster

    yield start
    for cluster in started:
        cluster.stop()


@contextmanager
def _load(cluster: StandaloneCluster, notes: Path) -> Iterator[None]:
    """Appends to a stream throughout the block; then every record that was acknowledged must be
    there, and the stream whole."""
    cluster.run("namespace", "create", "demo", "--roll-bytes", "100kB")
    cluster.run("stream", "create", _STREAM)
    notes.touch()
    appender = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.system.healing.appender"),
            *(cluster.uri, _STREAM, "00001", str(notes)),
        ],
        env=environment(),
    )
    try:
        wait_for(lambda: notes.stat().st_size > 0)
        yield
        size = notes.stat().st_size
        wait_for(lambda: notes.stat().st_size > size)  # it appends still
    finally:
        appender.kill()
        appender.wait()
    noted = notes.read_text().splitlines()
    read = cluster.run("read", _STREAM, "--from", "earliest", "-f", "%v\\n")
    assert not set(noted) - {" ".join(line.split()[:2]) for line in read.decode().splitlines()}
    cluster.run("stream", "verify", _STREAM)


def _kill(cluster: StandaloneCluster, number: int, how: int = signal.SIGKILL) -> None:
    pid = cluster.pid_of(number)
    os.kill(pid, how)
    wait_gone([pid])


def _listed(cluster: StandaloneCluster) -> dict[str, str]:
    found = json.loads(cluster.run("bookie", "list", "--json"))
    return {one["bookie"]: one["state"] for one in found}


def _await_state(cluster: StandaloneCluster, bookie: str, state: str) -> None:
    wait_for(lambda: _listed(cluster).get(bookie) == state)


def _first_lines(watching: subprocess.Popen[bytes], pattern: str) -> tuple[float, list[str]]:
    """Reads what a watch says until a line matches; returns the seconds since its first line, and
    the lines."""
    assert watching.stderr is not None
    lines: list[str] = []
    first_s = 0.0
    for line in watching.stderr:
        first_s = first_s or time.monotonic()
        lines.append(line.decode())
        if re.search(pattern, lines[-1]):
            return time.monotonic() - first_s, lines
    raise AssertionError(f"{pattern!r} was not said: {lines}")


def _watch(cluster: StandaloneCluster, bookie: str, *more: str) -> tuple[int, dict[str, Any]]:
    """Runs a watch to its end; returns its exit code and what it found."""
    done = cluster.try_run("bookie", "decommission", bookie, "--watch", "--json", *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


async def _ledger(
    client: LedgerClient, bookie: str, *, copies: int = 1, text: bytes = b"entry"
) -> int:
    """Writes a closed ledger of which `bookie` has a copy."""
    return await _ledger_on(client, bookie, copies=copies, text=text)


async def _ledger_on(
    client: LedgerClient, *bookies: str, copies: int, text: bytes = b"entry"
) -> int:
    async with client.create_ledger(
        ensemble_size=copies, write_quorum=copies, ack_quorum=copies, prefer=bookies
    ) as writer:
        await writer.append_many([text] * 10)
    named = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
    assert {*bookies} <= {*named}
    return writer.ledger_id


def _metadata(cluster: StandaloneCluster) -> dict[int, LedgerMetadata]:
    async def read() -> dict[int, LedgerMetadata]:
        async with LedgerClient.connect(cluster.uri) as client:
            return {one: await client.ledger_metadata(one) for one in await client.list_ledgers()}

    return trio.run(read)


def _naming(cluster: StandaloneCluster, bookie: str) -> list[int]:
    return [
        one
        for one, metadata in _metadata(cluster).items()
        if any(bookie in fragment.bookies for fragment in metadata.fragments)
    ]


def test_one_under_load_ends_by_itself(tmp_path: Path, start_healing: StartHealing) -> None:
    cluster = start_healing(4)
    bookie = bookie_of(cluster, 1)

    async def write() -> None:
        async with LedgerClient.connect(cluster.uri) as client:
            for _ in range(30):
                await _ledger(client, bookie, copies=3)

    with _load(cluster, tmp_path / "acknowledged"):
        trio.run(write)
        cluster.run("bookie", "decommission", bookie, "--dry-run")
        assert _listed(cluster)[bookie] == "up"

        with cluster.begin("bookie", "decommission", bookie, "--watch") as watching:
            _first_lines(watching, "ledgers and")
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE_S) == 128 + signal.SIGINT
        assert _listed(cluster)[bookie] == "emptying"
        code, found = _watch(cluster, bookie)
        assert (code, found["state"], found["ledgers_left"]) == (0, "emptied", 0)
        assert not _naming(cluster, bookie)
        _kill(cluster, 1, signal.SIGTERM)
        wait_for(lambda: bookie not in _listed(cluster))

    async def lacking() -> list[str]:
        async with LedgerClient.connect(cluster.uri) as client:
            return await copies_lacking(client)

    assert trio.run(lacking) == []
    wait_for(lambda: status_of(cluster)["exit_code"] == 0)


def test_a_cancelled_one_leaves_a_bookie_that_is_used_and_a_replaced_one_gives_its_place(
    start_healing: StartHealing,
) -> None:
    cluster = start_healing(5)
    bookie, other = bookie_of(cluster, 1), bookie_of(cluster, 5)

    async def write() -> None:
        async with LedgerClient.connect(cluster.uri) as client:
            for copies in (1, 1, 2, 2, 3, 3):
                await _ledger(client, bookie, copies=copies)

    trio.run(write)
    cluster.run("autorecovery", "disable")
    cluster.run("bookie", "decommission", bookie)
    _await_state(cluster, bookie, "emptying")
    cluster.run("bookie", "decommission", bookie, "--cancel")
    _await_state(cluster, bookie, "up")
    trio.run(write)
    cluster.run("autorecovery", "enable")

    before = _metadata(cluster)
    done = cluster.try_run("bookie", "replace", bookie, other, "--watch", "--json")
    assert done.returncode == 0, done
    after = _metadata(cluster)
    assert before.keys() == after.keys()
    for ledger_id, metadata in before.items():
        old, new = metadata.fragments[0].bookies, after[ledger_id].fragments[0].bookies
        if other not in old:
            assert new == tuple(other if one == bookie else one for one in old)
        assert bookie not in new


@asynccontextmanager
async def _sleeping_writer(cluster: StandaloneCluster, bookie: str) -> AsyncIterator[LedgerClient]:
    """A client with an open ledger, whose writer appends nothing more."""
    options = ClientOptions(idle_replacement_delay_s=_IDLE_S)
    async with (
        LedgerClient.connect(cluster.uri, options=options) as client,
        client.create_ledger(prefer=(bookie,)) as writer,
    ):
        await writer.append(b"once")
        assert bookie in writer.metadata.last_fragment.bookies
        yield client
        await writer.append(b"again")  # nobody has fenced it


async def _end_in_spite_of_hangs(cluster: StandaloneCluster) -> None:
    bookie, dead = bookie_of(cluster, 1), bookie_of(cluster, 2)
    async with _sleeping_writer(cluster, bookie) as client:
        on_dead = await _ledger(client, dead)
        deleted = [await _ledger(client, bookie, copies=3) for _ in range(3)]
        await trio.to_thread.run_sync(_kill, cluster, 2)
        await client.underreplication.set_enabled(False)
        with cluster.begin("bookie", "decommission", bookie, "--watch") as watching:

            def said() -> None:
                after_s, lines = _first_lines(watching, "is open, and its writer is alive")
                assert after_s < _SAID_WITHIN_S, lines
                assert any("auto-recovery is disabled" in line for line in lines), lines

            await trio.to_thread.run_sync(said)
            for ledger_id in deleted:
                await client.delete_ledger(ledger_id)
            await client.underreplication.set_enabled(True)
            with trio.fail_after(2 * PATIENCE_S):
                out, err = await trio.to_thread.run_sync(watching.communicate)
        assert watching.returncode == 0, (out, err)
        for ledger_id in deleted:
            with pytest.raises(NoSuchLedger):
                await client.ledger_metadata(ledger_id)
            assert await client.underreplication.read(ledger_id) is None
        metadata = await client.ledger_metadata(on_dead)
        assert metadata.fragments[0].bookies == (dead,)


def test_it_ends_in_spite_of_a_dead_bookie_deleted_ledgers_and_a_writer_that_sleeps(
    start_healing: StartHealing,
) -> None:
    cluster = start_healing(5)
    trio.run(_end_in_spite_of_hangs, cluster)
    assert not _naming(cluster, bookie_of(cluster, 1))


def test_the_only_copies_on_a_dead_bookie_hold_it_up_and_so_do_corrupt_ones(
    start_healing: StartHealing,
) -> None:
    cluster = start_healing(4, checkpoint_interval_ms=1000)
    bookie, disks = bookie_of(cluster, 1), cluster.directory / "bookie-1"

    async def write() -> tuple[int, int]:
        async with LedgerClient.connect(cluster.uri) as client:
            good = await _ledger(client, bookie)
            return good, await _ledger(client, bookie, text=b"spoilt" * 20)

    good, corrupt = trio.run(write)
    wait_for(lambda: is_checkpointed(disks, b"spoilt" * 20))
    _kill(cluster, 1)
    _await_state(cluster, bookie, "down")
    before = _metadata(cluster)
    with cluster.begin(
        "bookie", "decommission", bookie, "--watch", "--patience-s", "5"
    ) as watching:
        after_s, lines = _first_lines(watching, "2 of 2 ledgers and")
        assert after_s < _SAID_WITHIN_S, lines
        for ledger_id in (good, corrupt):
            assert any(f"ledger {ledger_id}: no live copy of" in line for line in lines), lines
        assert watching.wait(PATIENCE_S) == 3
    assert _metadata(cluster) == before

    assert rot(disks, b"spoilt" * 20) == 10
    cluster.start_bookie(cluster.settings_of(1))
    code, found = _watch(cluster, bookie, "--patience-s", "5")
    assert (code, found["ledgers_left"]) == (3, 1)
    wanted = f"ledger {corrupt}: no live copy of entries 0 to 9; last holders {bookie} (corrupt on"
    assert [one.startswith(wanted) for one in found["waits_for"]] == [True], found["waits_for"]
    assert _naming(cluster, bookie) == [corrupt]

    async def read() -> int:
        async with (
            LedgerClient.connect(cluster.uri) as client,
            client.open_ledger(good) as reader,
        ):
            return len(await reader.read(0, 9))

    assert trio.run(read) == 10
    cluster.run("bookie", "decommission", bookie, "--cancel")
    _await_state(cluster, bookie, "up")


def test_too_few_bookies_are_refused_at_the_beginning_and_named_when_one_dies_midway(
    start_healing: StartHealing,
) -> None:
    cluster = start_healing(4)
    bookie = bookie_of(cluster, 1)

    async def write() -> int:
        async with LedgerClient.connect(cluster.uri) as client:
            others = bookie_of(cluster, 3), bookie_of(cluster, 4)
            return await _ledger_on(client, bookie, *others, copies=3)

    ledger_id = trio.run(write)
    cluster.run("autorecovery", "disable")
    _kill(cluster, 4)
    _await_state(cluster, bookie_of(cluster, 4), "down")
    done = cluster.try_run("bookie", "decommission", bookie)
    assert done.returncode == 1, done
    assert b"need 3 bookies, 2 would be writable without it" in done.stderr
    assert _listed(cluster)[bookie] == "up"

    cluster.start_bookie(cluster.settings_of(4))
    _await_state(cluster, bookie_of(cluster, 4), "up")
    cluster.run("bookie", "decommission", bookie)
    _kill(cluster, 2)
    cluster.run("autorecovery", "enable")
    with cluster.begin(
        "bookie", "decommission", bookie, "--watch", "--patience-s", "5"
    ) as watching:
        _first_lines(watching, f"ledger {ledger_id}: needs 3 bookies, 2 are writable")
        assert watching.wait(PATIENCE_S) == 3
    assert _naming(cluster, bookie) == [ledger_id]


def _refused(cluster: StandaloneCluster, bookie: str, *more: str) -> str:
    done = cluster.try_run("bookie", "decommission", bookie, *more)
    assert done.returncode not in (0, 3), done
    return done.stderr.decode()


def test_bad_input_is_refused_and_changes_nothing(start_healing: StartHealing) -> None:
    cluster = start_healing(2)
    first, last = bookie_of(cluster, 1), bookie_of(cluster, 2)

    async def nodes(damage: bool) -> dict[str, bytes]:
        async with open_store(cluster.uri) as store:
            path = f"{PATH}/{first}"
            if damage:
                await store.create(path, b"{no JSON")
            names = await store.children(PATH)
            return {name: (await store.get(f"{PATH}/{name}")).data for name in names}

    assert "is not in this cluster, which has" in _refused(cluster, "127.0.0.1:1")
    assert "a/b" in _refused(cluster, "a/b")
    _kill(cluster, 1)
    _await_state(cluster, first, "down")
    assert "is the last one that is writable" in _refused(cluster, last)
    assert trio.run(nodes, False) == {}
    damaged = trio.run(nodes, True)
    for options in ((), ("--watch",), ("--dry-run",)):
        said = _refused(cluster, first, *options)
        assert f"{PATH}/{first}" in said, said
    assert trio.run(nodes, False) == damaged
