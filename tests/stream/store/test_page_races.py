"""Pages that are purged while others decide by them, and pages that writers leave behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from bookie.testing import SimCluster, simulate
from ledger.verify import verify_ledger
from stream import Namespace, Position, verify
from stream.retention.policies import plans
from stream.store.pages import forget_pages
from tests.sim.page_limits import page_limits
from tests.stream.sim_namespace import sim_namespace
from tests.stream.store.paged_cluster import paged_cluster


async def begin_by_info(namespace: Namespace) -> Position:
    return (await namespace.info("s")).first_position


async def begin_by_segments(namespace: Namespace) -> Position:
    return Position((await namespace.segments("s", since=70, limit=1))[0].number, 0, 0)


async def begin_by_plan(namespace: Namespace) -> Position:
    return (await namespace.explain_retention("s")).begin


async def begin_by_plans(namespace: Namespace) -> Position:
    (plan,) = await plans(namespace.client, await namespace.policy())
    return plan.begin


async def begin_by_trash(namespace: Namespace) -> Position:
    entries = await namespace.trash()
    return entries[0].first_position if entries else Position(200, 0, 0)


@pytest.mark.parametrize(
    "ask", [begin_by_info, begin_by_segments, begin_by_plan, begin_by_plans, begin_by_trash]
)
async def test_a_page_that_is_purged_before_it_is_read_is_no_loss(
    ask: Callable[[Namespace], Awaitable[Position]],
) -> None:
    async with paged_cluster() as cluster:
        namespace = cluster.namespace
        await namespace.create_stream("s")
        await cluster.grow("s", 300)
        await namespace.truncate("s", Position(70, 0, 0))
        cluster.forget_pages()

        async def purge() -> None:
            await namespace.truncate("s", Position(200, 0, 0))
            await namespace.purge("s")
            cluster.forget_pages()

        cluster.store.before_page = purge
        assert await ask(namespace) == Position(200, 0, 0)
        assert cluster.store.before_page is None, "no page was needed"


@page_limits()
def test_segments_that_are_purged_meanwhile_are_not_verified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "SEGMENTS_LISTED_AT_ONCE", 2)

    async def scenario(cluster: SimCluster) -> None:
        async with sim_namespace(cluster, trash_ms=0) as namespace:
            await namespace.create_stream("s")
            for _ in range(12):
                async with namespace.writer("s") as writer:
                    await writer.append(b"v")
            is_purged = False

            async def purging(*args: object, **settings: object) -> object:
                nonlocal is_purged
                if not is_purged:
                    is_purged = True
                    await namespace.truncate("s", Position(6, 0, 0))
                    forget_pages(namespace.client.store)
                return await verify_ledger(*args, **settings)  # type: ignore[arg-type]

            monkeypatch.setattr(verify, "verify_ledger", purging)
            report = await namespace.verify("s")
            found = [each.segment for each in report.segments if each.segment > 2]
            assert found == [6, 7, 8, 9, 10, 11, 12]

    simulate(scenario)
