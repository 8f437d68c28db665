"""Changes of the list of ledger directories: what is refused, and damage of the file about it.

That a change which is interrupted loses nothing is in tests/sim/bookies/test_changing_directories.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from bookie.core.integrity_state import IntegrityStage, IntegrityState
from bookie.startup.change_directories import DirectoriesKept
from bookie.startup.cookies import CookieMismatch
from bookie.startup.directory_layout import DIRECTORIES_FILE, DirectoriesDamaged
from bookie.testing import SimCluster, Simulation, run_simulated, small_config
from ledger.errors import Status
from ledger.metastore.bookies import BookieRegistry
from ledger.wire.messages import ReadRequest
from tests.sim.bookies.test_changing_directories import two_directories

NAME, BOOKIE = "bookie-0", "bookie-0:3181"
NEW = "/ledgers-2"
LEDGERS = 9

Body = Callable[[SimCluster], Awaitable[None]]


def _simulate(body: Body) -> None:
    """Runs `body` with one bookie of two journals and two ledger directories."""

    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=1, config=two_directories) as cluster:
            await body(cluster)

    run_simulated(main, 0, time_limit_s=300)


async def _write(cluster: SimCluster) -> list[int]:
    """Writes closed ledgers of one entry; returns their ids."""
    found = []
    async with cluster.client() as client:
        for _ in range(LEDGERS):
            async with client.create_ledger(
                ensemble_size=1, write_quorum=1, ack_quorum=1
            ) as writer:
                await writer.append(b"%d" % writer.ledger_id)
            found.append(writer.ledger_id)
    return found


async def _check_served(cluster: SimCluster, ledger_ids: list[int]) -> None:
    async with cluster.client() as client:
        for ledger_id in ledger_ids:
            answer = await client.pool.call(BOOKIE, ReadRequest(ledger_id, 0), timeout_s=10)
            assert answer.status is Status.OK


async def _expanded(cluster: SimCluster) -> list[int]:
    """A bookie that is down, with three directories and ledgers in each."""
    written = await _write(cluster)
    await cluster.kill_bookie(NAME)
    assert await cluster.expand_storage(NAME, NEW)
    await cluster.start_bookie(NAME)
    written += await _write(cluster)
    await cluster.kill_bookie(NAME)
    return written


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"journal_directories": ("/journal", "/journal-1", "/journal-2")},
            r"has /journal, /journal-1, and that list cannot change",
        ),
        (
            {"ledger_directories": ("/ledgers-1", "/ledgers", NEW)},
            r"Cure: name those first, in this order, and new ones behind",
        ),
        (
            {"ledger_directories": ("/ledgers", NEW)},
            r"bookie bookie-0:3181 has /ledgers, /ledgers-1\. Cure: .* drop-directory CONFIG",
        ),
        ({"bookie_id": "b7"}, r"does not know bookie b7\. Cure: "),
    ],
)
def test_settings_that_do_not_add_directories_at_the_end_are_refused(
    settings: dict[str, object], problem: str
) -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _write(cluster)
        await cluster.kill_bookie(NAME)
        before = cluster.config(NAME)
        cluster.configure(NAME, **settings)
        with pytest.raises(DirectoriesKept, match=problem):
            await cluster.expand_storage(NAME)
        cluster.configure(NAME, **{name: getattr(before, name) for name in settings})
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)

    _simulate(body)


def test_nothing_to_add_changes_nothing() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _write(cluster)
        await cluster.kill_bookie(NAME)
        assert await cluster.expand_storage(NAME)
        assert f"/ledgers/{DIRECTORIES_FILE}" not in cluster.disk(NAME).inodes
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)

    _simulate(body)


def test_a_directory_that_is_not_empty_is_not_added() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _write(cluster)
        await cluster.kill_bookie(NAME)
        disk = cluster.disk(NAME).mount()
        await disk.make_directory(NEW)
        await disk.replace_file(f"{NEW}/VERSION", b"of another bookie")
        disk.close()
        with pytest.raises(DirectoriesKept, match=rf"{NEW} is new .* holds VERSION: .* empty it"):
            await cluster.expand_storage(NAME, NEW)
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)

    _simulate(body)


def test_a_bookie_that_misses_a_directory_adds_none() -> None:
    async def body(cluster: SimCluster) -> None:
        await _write(cluster)
        await cluster.kill_bookie(NAME)
        cluster.disk(NAME).wipe("/ledgers-1")
        disk = cluster.disk(NAME).mount()
        await disk.make_directory("/ledgers-1")  # the mount point
        disk.close()
        with pytest.raises(DirectoriesKept, match=r"/ledgers-1 has no cookie.* drop-directory"):
            await cluster.expand_storage(NAME, NEW)

    _simulate(body)


def test_a_bookie_that_may_have_lost_entries_adds_no_directory_before_it_knows_which() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _write(cluster)
        integrity = cluster.storage(NAME).directories[1].integrity
        await integrity.set_state(IntegrityState(IntegrityStage.LEDGERS_UNKNOWN, "a test"))
        await cluster.kill_bookie(NAME)
        with pytest.raises(DirectoriesKept, match=r"/ledgers-1: a test. Cure: start the bookie"):
            await cluster.expand_storage(NAME, NEW)
        await cluster.start_bookie(NAME)
        await cluster.kill_bookie(NAME)
        assert await cluster.expand_storage(NAME, NEW)
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)

    _simulate(body)


def test_what_cannot_be_dropped_is_refused() -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _write(cluster)
        await cluster.kill_bookie(NAME)
        with pytest.raises(DirectoriesKept, match=r"is all that bookie .* allow_empty_disk = true"):
            await cluster.drop_directories(NAME, "/ledgers", "/ledgers-1")
        for wrong in (["/journal"], ["/mistyped"], ["/ledgers", "/mistyped"]):
            with pytest.raises(DirectoriesKept, match=r"not all of .* Cure: write them as"):
                await cluster.drop_directories(NAME, *wrong)
        cluster.configure(NAME, ledger_directories=("/ledgers", "/ledgers-3"))
        with pytest.raises(DirectoriesKept, match=r"has /ledgers\. Cure: give ledger_directories"):
            await cluster.drop_directories(NAME, "/ledgers-1")
        cluster.configure(NAME, ledger_directories=("/ledgers", "/ledgers-1"))
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)
        await cluster.kill_bookie(NAME)
        assert await cluster.drop_directories(NAME, "/ledgers-1")
        assert await cluster.drop_directories(NAME, "/ledgers-1")  # is repeated
        cluster.disk(NAME).wipe("/ledgers")
        with pytest.raises(DirectoriesKept, match=r"/ledgers has no cookie"):
            await cluster.drop_directories(NAME, "/ledgers-1")

    _simulate(body)


@pytest.mark.parametrize(
    ("directories", "cure"),
    [
        (("/ledgers", "/ledgers-1", NEW), f"to add {NEW}, run `ledgerstream bookie expand-storage"),
        (("/ledgers",), "if one is lost: `ledgerstream bookie drop-directory CONFIG"),
    ],
)
def test_a_start_with_another_list_names_the_command(
    directories: tuple[str, ...], cure: str
) -> None:
    async def body(cluster: SimCluster) -> None:
        await _write(cluster)
        await cluster.kill_bookie(NAME)
        cluster.configure(NAME, ledger_directories=directories, write_cache_bytes=1 << 20)
        await cluster.start_bookie(NAME)

    with pytest.raises(CookieMismatch, match=cure):
        _simulate(body)


@pytest.mark.parametrize("hurt", ["missing", "damaged"])
def test_the_file_is_written_again_where_it_is_lost(hurt: str) -> None:
    async def body(cluster: SimCluster) -> None:
        written = await _expanded(cluster)
        disk = cluster.disk(NAME)
        whole = disk.inodes[f"/journal/{DIRECTORIES_FILE}"]
        for directory in ("/journal", "/ledgers", NEW):
            path = f"{directory}/{DIRECTORIES_FILE}"
            if hurt == "damaged":
                disk.flip_bit(path, 40)
            else:
                del disk.inodes[path], disk.durable_inodes[path]
        await cluster.start_bookie(NAME)
        await _check_served(cluster, written)
        again = disk.inodes[f"/journal/{DIRECTORIES_FILE}"]
        assert again is not whole
        assert again.size > 0

    _simulate(body)


@pytest.mark.parametrize("hurt", ["missing", "damaged"])
def test_without_the_file_an_expanded_bookie_does_not_start(hurt: str) -> None:
    async def body(cluster: SimCluster) -> None:
        await _expanded(cluster)
        await cluster.start_bookie(NAME)
        await trio.sleep(5)  # checkpoints
        await cluster.kill_bookie(NAME)
        disk = cluster.disk(NAME)
        for path in [path for path in disk.inodes if path.endswith(DIRECTORIES_FILE)]:
            if hurt == "damaged":
                disk.flip_bit(path, 40)
            else:
                del disk.inodes[path], disk.durable_inodes[path]
        process = cluster.begin_bookie(NAME)
        await process.finished.wait()
        raised.append(process.error)
        assert "DIRECTORIES" in repr(process.error)
        assert "Cure: restore" in repr(process.error)

    raised: list[BaseException | None] = []
    if hurt == "damaged":
        with pytest.raises(DirectoriesDamaged):
            _simulate(body)
    else:
        _simulate(body)
        assert "BookieIoError" in repr(raised[0])


def test_the_cookie_of_the_cluster_is_the_one_that_counts() -> None:
    async def body(cluster: SimCluster) -> None:
        await _expanded(cluster)
        found = await BookieRegistry(cluster.metadata.connect("operator")).read_cookie(BOOKIE)
        assert found is not None
        assert found[0].ledger_directories == ("/ledgers", "/ledgers-1", NEW)

    _simulate(body)


def test_a_bookie_with_one_directory_gains_one() -> None:
    async def main(simulation: Simulation) -> None:
        async with SimCluster(simulation, bookies=1, config=small_config) as cluster:
            written = await _expanded(cluster)
            await cluster.start_bookie(NAME)
            await _check_served(cluster, written)
            used = {cluster.storage(NAME).directory_of(one).directory for one in written}
            assert used == {"/ledgers", NEW}

    run_simulated(main, 0, time_limit_s=300)
