"""The HTTP paths of auto-recovery: Apache's replies, and requests that are refused."""

from __future__ import annotations

import random
from contextlib import aclosing
from pathlib import Path

import pytest
import trio

from bookie.bookie import Bookie
from ledger.metastore.bookies import BookieInfo
from ledger.metastore.decommissions import Decommissions
from ledger.metastore.election import AuditorElection
from ledger.metastore.underreplication import UnderreplicationStore

from .test_http import Client, served

AT = "/api/v1/autorecovery"
OTHER = "10.0.0.2:3181"


def marks_of(bookie: Bookie) -> UnderreplicationStore:
    return UnderreplicationStore(bookie.store, "/ledgers", bookie.now_ms)


async def register_other(bookie: Bookie, nursery: trio.Nursery, bookie_id: str = OTHER) -> None:
    """Adds a writable bookie to the cluster."""

    async def run(task_status: trio.TaskStatus[None]) -> None:
        info = BookieInfo("10.0.0.2", 3181)
        async with bookie.registry.register(bookie_id, info):
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(run)


async def test_the_status_is_shown_and_set(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        marks = marks_of(cluster.bookies[0])
        assert (await client.ask(f"{AT}/status")).json == {"enabled": True}
        for word, is_enabled in (("false", False), ("FALSE", False), ("True", True)):
            answer = await client.ask(f"{AT}/status?enabled={word}", "PUT")
            assert answer.json == {"enabled": is_enabled}
            assert await marks.is_enabled() is is_enabled
        for wrong in ("", "?enabled=", "?enabled=no", "?other=true"):
            answer = await client.ask(f"{AT}/status{wrong}", "PUT")
            assert answer.status == 400
            assert "enabled" in answer.json["error"]
        assert (await client.ask(f"{AT}/status")).json == {"enabled": True}


async def test_the_auditor_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        bookie = cluster.bookies[0]
        answer = await client.ask(f"{AT}/who_is_auditor")
        assert (answer.status, answer.body) == (404, b"No auditor elected")
        async with AuditorElection(bookie.store, "/ledgers", random.Random(1)).elected(OTHER):
            answer = await client.ask(f"{AT}/who_is_auditor")
            assert (answer.status, answer.body) == (200, f"Auditor: {OTHER}".encode())
        damaged = "/ledgers/underreplication/auditorelection/V_0000000001"
        await bookie.store.create(damaged, b"\xff")
        answer = await client.ask(f"{AT}/who_is_auditor")
        assert answer.status == 500
        assert damaged in answer.json["error"]


async def test_ledgers_that_lack_copies_are_listed(tmp_path: Path) -> None:
    path = f"{AT}/list_under_replicated_ledger"
    async with served(tmp_path) as (cluster, client):
        bookie = cluster.bookies[0]
        marks = marks_of(bookie)
        answer = await client.ask(path)
        assert (answer.status, answer.body) == (404, b"No under replicated ledgers found")
        await marks.mark(7, ["b1"])
        await marks.mark(5, ["b1", "b2"])
        await marks.mark(1 << 40, ["b3"])
        assert (await client.ask(path)).json == [5, 7, 1 << 40]
        assert (await client.ask(f"{path}?missingreplica=b1")).json == [5, 7]
        excluded = "excludingmissingreplica=b2"
        assert (await client.ask(f"{path}?{excluded}")).json == [7, 1 << 40]
        assert (await client.ask(f"{path}?missingreplica=b1&{excluded}")).json == [7]
        assert (await client.ask(f"{path}?missingreplica=b9")).status == 404
        # Which bookies lack a copy of a damaged one is unknown; it is in every list.
        await bookie.store.put(
            "/ledgers/underreplication/ledgers/0000/0000/0000/0005/urL0000000005", b"\xff"
        )
        assert (await client.ask(f"{path}?missingreplica=b9")).json == [5]


async def test_the_delay_is_shown_and_set(tmp_path: Path) -> None:
    path = f"{AT}/lost_bookie_recovery_delay"
    async with served(tmp_path) as (cluster, client):
        answer = await client.ask(path)
        assert answer.status == 404
        assert "no delay was set" in answer.json["error"]
        answer = await client.ask(path, "PUT", b'{"delay_seconds": 30}')
        assert (answer.status, answer.body) == (200, b"Success set lostBookieRecoveryDelay to 30")
        assert (await client.ask(path)).body == b"lostBookieRecoveryDelay value: 30"
        assert await marks_of(cluster.bookies[0]).lost_bookie_recovery_delay_s() == 30
        wrong = (b"", b"[]", b"{}", b'{"delay_seconds": -1}', b'{"delay_seconds": true}')
        for body in (*wrong, b'{"delay_seconds": "1"}', b'{"delay_seconds": 1, "x": 1}'):
            answer = await client.ask(path, "PUT", body)
            assert answer.status == 400
            assert "delay_seconds" in answer.json["error"]
        answer = await client.ask(path, "PUT", b'{"delay_seconds": 1000000000}')
        assert answer.status == 400
        assert (await client.ask(path)).body == b"lostBookieRecoveryDelay value: 30"


async def test_an_audit_is_triggered_by_setting_the_delay_to_what_it_is(tmp_path: Path) -> None:
    path = f"{AT}/trigger_audit"
    async with served(tmp_path) as (cluster, client):
        bookie = cluster.bookies[0]
        marks = marks_of(bookie)
        answer = await client.ask(path, "PUT")
        assert answer.status == 409
        assert "there is no auditor" in answer.json["error"]
        async with AuditorElection(bookie.store, "/ledgers", random.Random(1)).elected(OTHER):
            await marks.set_enabled(False)
            answer = await client.ask(path, "PUT")
            assert answer.status == 409
            assert "disabled" in answer.json["error"]
            assert await marks.lost_bookie_recovery_delay_s() is None
            await marks.set_enabled(True)
            assert (await client.ask(path, "PUT")).status == 200
            setting = bookie.config.lost_bookie_recovery_delay_s
            assert await marks.lost_bookie_recovery_delay_s() == setting
            await marks.set_lost_bookie_recovery_delay_s(17)
            async with aclosing(marks.watch_delay()) as delays:
                assert await anext(delays) == 17
                answer = await client.ask(path, "PUT")
                assert (answer.status, answer.body) == (200, b"Success trigger audit.")
                assert await anext(delays) == 17  # set again, which is what the auditor sees


async def test_a_bookie_is_decommissioned(tmp_path: Path) -> None:
    path = f"{AT}/decommission"
    async with served(tmp_path) as (cluster, client), trio.open_nursery() as nursery:
        bookie = cluster.bookies[0]
        decommissions = Decommissions(bookie.store)
        body = f'{{"bookie_src": "{bookie.bookie_id}"}}'.encode()
        answer = await client.ask(path, "PUT", body)
        assert answer.status == 409
        assert "nowhere to go. Cure: start another bookie" in answer.json["error"]
        answer = await client.ask(path, "PUT", b'{"bookie_src": "10.0.0.9:1"}')
        assert answer.status == 404
        assert "10.0.0.9:1 is not in this cluster" in answer.json["error"]
        assert await decommissions.list() == []
        await register_other(bookie, nursery)
        for _ in range(2):  # the second one finds that it has begun
            answer = await client.ask(path, "PUT", body)
            wanted = f"Success send decommission Bookie command {bookie.bookie_id}"
            assert (answer.status, answer.body) == (200, wanted.encode())
            (found,) = await decommissions.list()
            assert (found.bookie, found.replacement, found.version) == (bookie.bookie_id, None, 0)
        answer = await client.ask(path, "PUT", f'{{"bookie_src": "{OTHER}"}}'.encode())
        assert answer.status == 409, "it was the last one that accepts entries"
        nursery.cancel_scope.cancel()


async def test_a_bookie_is_recovered_for_good(tmp_path: Path) -> None:
    path = f"{AT}/bookie"
    async with served(tmp_path) as (cluster, client), trio.open_nursery() as nursery:
        bookie = cluster.bookies[0]
        await register_other(bookie, nursery)
        decommissions = Decommissions(bookie.store)
        source = f'"bookie_src": ["{bookie.bookie_id}"]'
        for body, status, cause in (
            (f"{{{source}}}", 400, "delete_cookie must be true"),
            (f'{{{source}, "delete_cookie": 1}}', 400, "the body must be"),
            ('{"bookie_src": [], "delete_cookie": true}', 400, "the body must be"),
            ('{"bookie_src": "b1", "delete_cookie": true}', 400, "the body must be"),
            ('{"bookie_src": ["b 1"], "delete_cookie": true}', 400, "bookie id 'b 1'"),
            (f'{{{source}, "x": 1, "delete_cookie": true}}', 400, "the body must be"),
            (f'{{{source}, "bookie_dest": ["b8"], "delete_cookie": true}}', 409, "b8 is not writ"),
            (f'{{{source}, "bookie_dest": ["a", "b"], "delete_cookie": true}}', 400, "has one at"),
        ):
            answer = await client.ask(path, "PUT", body.encode())
            assert (answer.status, body) == (status, body)
            assert cause in answer.json["error"]
        assert await decommissions.list() == []
        body = f'{{{source}, "bookie_dest": ["{OTHER}"], "delete_cookie": true}}'
        answer = await client.ask(path, "PUT", body.encode())
        assert answer.body == b"Success send recovery request command."
        (found,) = await decommissions.list()
        assert (found.bookie, found.replacement) == (bookie.bookie_id, OTHER)
        nursery.cancel_scope.cancel()


async def test_a_damaged_node_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        node = "/ledgers/underreplication/lostBookieRecoveryDelay"
        await cluster.bookies[0].store.create(node, b"soon")
        answer = await client.ask(f"{AT}/lost_bookie_recovery_delay")
        assert answer.status == 500
        assert node in answer.json["error"]


async def check_unavailable(client: Client, path: str) -> None:
    answer = await client.ask(path)
    assert answer.status == 503
    assert "cluster" in answer.json["error"]


async def test_metadata_that_are_gone_are_not_an_empty_cluster(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, client):
        await cluster.bookies[0].store.delete("/ledgers/INSTANCEID")
        for name in ("status", "who_is_auditor", "list_under_replicated_ledger"):
            await check_unavailable(client, f"{AT}/{name}")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("GET", "bookie"),
        ("GET", "decommission"),
        ("GET", "trigger_audit"),
        ("PUT", "who_is_auditor"),
        ("POST", "status"),
    ],
)
async def test_other_methods_are_refused(tmp_path: Path, method: str, name: str) -> None:
    async with served(tmp_path) as (_, client):
        assert (await client.ask(f"{AT}/{name}", method)).status == 405
