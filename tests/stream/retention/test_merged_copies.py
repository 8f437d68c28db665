"""What merged segments have of copies, digests and placement: as much as they ever had."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from bookie.testing import SimCluster, simulate
from ledger.core.copies import CopyVerdict
from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata
from ledger.core.placement.policies import PLACEMENT_TAG, PlacementPolicy
from ledger.core.placement.topology import Location
from ledger.errors import InvalidArgument, NotEnoughBookies
from ledger.metastore.locations import BookieLocations
from ledger.verify import verify_ledger
from stream import NamespaceSettings
from stream.core import segment_merging as core
from stream.core.metadata.namespaces import NamespaceMetadata
from stream.core.strict_policy import as_strict
from stream.retention import segment_merging
from stream.retention.janitor import Janitor
from stream.retention.segment_merging import merge_segments
from stream.sinks.sinks import commit_batch
from tests.sim.page_limits import page_limits, small_merges
from tests.stream.retention.long_stream import SEGMENTS, Long, a_long_stream
from tests.stream.retention.test_segment_merger import swept_and_merged
from tests.stream.sim_namespace import sim_namespace
from tests.stream.sinks.sink_ledgers import write_ledger
from tests.stream.whole_streams import read_all


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with page_limits(), small_merges():
        yield


WEAKER = NamespaceSettings(ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type="DUMMY")


@pytest.mark.parametrize(
    ("settings", "digest"),
    [(WEAKER, DigestType.CRC32C), (NamespaceSettings(digest_type="HMAC"), DigestType.HMAC)],
)
def test_a_merge_keeps_the_copies_that_an_earlier_policy_made(
    settings: NamespaceSettings, digest: DigestType
) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            await long.namespace.set_policy(**settings)
            assert await long.merge() > SEGMENTS // 2
            assert await long.drop() > SEGMENTS // 2
            for ledger_id in await merged_ledgers(long):
                metadata = await long.client.ledger_metadata(ledger_id)
                sizes = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
                assert (sizes, metadata.digest_type) == ((3, 3, 2), digest)
                report = await verify_ledger(long.client, ledger_id)
                assert report.verdict is CopyVerdict.WHOLE
            assert await read_all(long.namespace, "s") == long.records

    simulate(scenario)


def test_segments_that_need_more_bookies_than_are_left_keep_no_others_from_being_merged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "LEDGERS_MAX", 100)

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            older = (await long.segments())[-1].number
            await cluster.kill_bookie(cluster.bookies[0])
            await trio.sleep(30)
            two = NamespaceSettings(ensemble_size=2, write_quorum=2, ack_quorum=2)
            await long.namespace.set_policy(**two)
            for _ in range(12):
                one = await write_ledger(long.client, "s", [[b"x"]], quorums=(2, 2, 2))
                await commit_batch(long.client, [one])
            janitor = Janitor(long.client, "n")
            report = await swept_and_merged(janitor)
            assert (report.segments > 4, report.failures) == (True, 0)
            assert (await swept_and_merged(janitor)).failures == 0
            merged = [one.number for one in await long.segments() if one.is_merged]
            assert len(merged) == report.segments
            assert min(merged) > older, "what has three copies keeps them"

    simulate(scenario)
    said = [one for one in caplog.records if "need a ledger with 3 copies" in one.message]
    assert [one.levelname for one in said if one.levelname != "INFO"] == ["WARNING"]


def test_no_merge_puts_all_copies_into_the_rack_that_is_left() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, placement_policy="rack") as namespace:
            *here, there = cluster.bookies
            locations = BookieLocations(namespace.client.store)
            for bookie in here:
                await locations.place(f"{bookie}:3181", Location.parse("/r1"))
            await locations.place(f"{there}:3181", Location.parse("/r2"))
            long = Long(namespace)
            await long.grow()
            await cluster.kill_bookie(there)
            await trio.sleep(90)  # it is no longer registered, and the table was read
            plan, policy = await long.plan(), await namespace.policy()
            assert plan is not None
            before, stream = await long.client.list_ledgers(), await long.metadata()
            with pytest.raises(
                NotEnoughBookies, match=r"placement rack, as the policy .* in 1 rack"
            ):
                await merge_segments(long.client, policy, stream, plan, bytes_per_s=1e9)
            assert await long.client.list_ledgers() == before
            await cluster.start_bookie(there)
            assert await long.merge() > SEGMENTS // 2
            for ledger_id in await merged_ledgers(long):
                metadata = await long.client.ledger_metadata(ledger_id)
                assert f"{there}:3181" in metadata.last_fragment.bookies
                assert metadata.custom[PLACEMENT_TAG] == b"rack", "not enforced in repairs"

    simulate(scenario, bookies=4)


@pytest.mark.parametrize(
    ("policy", "earlier", "wanted"),
    [
        ("default", "default", "default"),
        ("default", "rack,minimum=3,enforce", "rack,minimum=3,enforce"),
        ("rack,minimum=3", "default", "rack,minimum=3"),
        ("rack,minimum=1", "default", "rack,minimum=1"),
        ("rack,minimum=1", "rack", "rack"),
        ("region", "rack,minimum=3", "region,minimum=3"),
        ("zone,enforce", "region", "region,enforce"),
    ],
)
def test_the_strictest_placement_of_both_is_kept(policy: str, earlier: str, wanted: str) -> None:
    placement = PlacementPolicy.decode(policy.encode())
    custom = {} if earlier == "default" else {PLACEMENT_TAG: earlier.encode()}
    metadata = LedgerMetadata(
        ledger_id=1, ensemble_size=3, write_quorum=3, ack_quorum=2, custom=custom,
        fragments=(Fragment(0, ("a:1", "b:1", "c:1")),), digest_type=None,
    )  # fmt: skip
    namespace = NamespaceMetadata(
        name="n", placement_policy=placement.kind, placement_min=placement.minimum,
        placement_enforce=placement.enforce,
    )  # fmt: skip
    assert as_strict(namespace, metadata).bookie_placement.encode().decode() == wanted


def test_copies_are_kept_and_not_the_bookies_that_they_were_spread_over() -> None:
    metadata = LedgerMetadata(
        ledger_id=1, ensemble_size=5, write_quorum=3, ack_quorum=2, digest_type=None,
        fragments=(Fragment(0, ("a:1", "b:1", "c:1", "d:1", "e:1")),),
    )  # fmt: skip
    fewer = NamespaceMetadata(name="n", ensemble_size=2, write_quorum=2, ack_quorum=1)
    found = as_strict(fewer, metadata)
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (3, 3, 2)
    more = NamespaceMetadata(name="n", ensemble_size=6, write_quorum=4, ack_quorum=3)
    found = as_strict(more, metadata)
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == (6, 4, 3)


def test_segments_for_which_there_is_no_policy_are_left_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a placement by regions and one acknowledgement, and an earlier one that was
    enforced: both together are refused."""
    region = NamespaceMetadata(name="n", placement_policy="region", ack_quorum=1)
    metadata = LedgerMetadata(
        ledger_id=1, ensemble_size=3, write_quorum=3, ack_quorum=1, digest_type=None,
        fragments=(Fragment(0, ("a:1", "b:1", "c:1")),), custom={PLACEMENT_TAG: b"rack,enforce"},
    )  # fmt: skip
    with pytest.raises(InvalidArgument, match="ack_quorum"):
        as_strict(region, metadata)

    async def scenario(cluster: SimCluster) -> None:
        async with a_long_stream(cluster) as long:
            strange = (await long.segments())[1].ledger_id

            def refused(policy: NamespaceMetadata, of: LedgerMetadata) -> NamespaceMetadata:
                if of.ledger_id == strange:
                    raise InvalidArgument("they cannot be combined")
                return as_strict(policy, of)

            monkeypatch.setattr(segment_merging, "as_strict", refused)
            report = await swept_and_merged(Janitor(long.client, "n"))
            assert (report.segments > 4, report.failures) == (True, 0)
            assert strange in await long.client.list_ledgers()
            assert strange not in {one.made_on for one in await long.segments()}

    simulate(scenario)


async def merged_ledgers(long: Long) -> set[int]:
    found = {one.ledger_id for one in await long.segments() if one.is_merged}
    assert found
    return found
