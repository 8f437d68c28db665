"""Permissions over real sockets: each operation of each version, as each kind of user."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.core.operations import WIRE_OPERATIONS
from bookie.server import access
from ledger.core.permissions import Grant, Role
from ledger.errors import MetadataUnavailable, Status
from ledger.metastore.ledgers import LedgerStore
from ledger.metastore.memory import MemoryStore
from ledger.metastore.permissions import PATH
from ledger.wire import v2
from ledger.wire.messages import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    RequestBody,
    StartTlsRequest,
    WriteLacRequest,
)
from tests.bookie.core.test_operations import DECIDED
from tests.bookie.server.permitted_cluster import (
    connection_of,
    metadata_of,
    named_users,
    permitted_cluster,
    until,
)
from tests.bookie.server.test_server import DIGEST, KEY, add, entry_of
from tests.real_cluster import RealCluster, now_ms

pytestmark = pytest.mark.usefixtures(named_users.__name__)

GRANTS = (
    Grant("reader", Role.READ, "a"),
    Grant("writer", Role.WRITE, "a"),
    Grant("manager", Role.MANAGE, "a*"),
    Grant("other", Role.MANAGE, "b"),
    Grant("ledgers", Role.LEDGER),
    Grant("operator", Role.OPERATE),
    Grant("admin", Role.ADMIN),
)
MAY: dict[str, set[tuple[str | None, str]]] = {
    "anonymous": set(),
    "stranger": set(),
    "reader": {("a", "read")},
    "writer": {("a", "read"), ("a", "write")},
    "manager": {("a", "read"), ("a", "write")},
    "other": {("b", "read"), ("b", "write")},
    "ledgers": {(None, "ledger")},
    "operator": {(None, "operate"), ("a", "operate"), ("b", "operate")},
}
"""What each user may do to ledgers of a namespace; the admin may do everything."""
LEDGERS: dict[int, str | None] = {7: "a", 8: "b", 9: None}
MISSING = 10
"""A ledger that the metadata does not have: nobody can show a right to it."""


def request(name: str, ledger_id: int) -> RequestBody:
    recovery = add(ledger_id, 0, is_recovery=True)
    bodies: dict[str, RequestBody] = {
        "add": add(ledger_id, 0),
        "recovery add": recovery,
        "read": ReadRequest(ledger_id, 0),
        "long poll": ReadRequest(ledger_id, -1, previous_lac=5, timeout_ms=1, is_piggyback=True),
        "fencing read": ReadRequest(ledger_id, 0, KEY, is_fencing=True),
        "batch read": BatchReadRequest(ledger_id, 0, 10, 1000),
        "fencing batch read": BatchReadRequest(ledger_id, 0, 10, 1000, KEY, is_fencing=True),
        "write LAC": WriteLacRequest(ledger_id, 0, KEY, DIGEST.encode_lac(ledger_id, 0)),
        "read LAC": ReadLacRequest(ledger_id),
        "force ledger": ForceLedgerRequest(ledger_id),
        "list of entries": ListEntriesRequest(ledger_id),
        "bookie info": GetBookieInfoRequest(3),
        "auth": AuthRequest("none", b""),
        "start TLS": StartTlsRequest(),
    }
    return bodies[name]


def traces(cluster: RealCluster) -> Any:
    """Returns all that requests could have left in the storage of a bookie."""
    storage = cluster.bookies[0].storage
    assert storage is not None
    found: list[object] = []
    for ledger_id in (*LEDGERS, MISSING):
        state = storage.state(ledger_id)
        if state is not None:
            what = state.is_fenced, state.lac, state.explicit_lac, state.is_watched
            found.append((ledger_id, *what, storage.last_entry_id(ledger_id)))
    return found, [journal.is_idle for journal in storage.journals]


def is_allowed(user: str, name: str, ledger_id: int) -> bool:
    namespace = LEDGERS.get(ledger_id)
    needs = DECIDED[name][namespace is None]
    if needs is None or user == "admin":
        return True
    if ledger_id == MISSING and needs != "operate":
        return False
    return (namespace, needs) in MAY[user]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("user", [*MAY, "admin"])
async def test_each_operation_is_allowed_or_refused_as_decided(
    tmp_path: Path, user: str, version: int
) -> None:
    tried = 0
    async with (
        permitted_cluster(tmp_path, GRANTS, LEDGERS) as (cluster, _),
        connection_of(cluster, user, version) as connection,
    ):
        before = traces(cluster)
        assert before[0] == []
        for ledger_id in (*LEDGERS, MISSING):
            for operation in WIRE_OPERATIONS:
                if version not in operation.versions or operation.name == "auth":
                    continue
                answer = await connection.call(request(operation.name, ledger_id), 5.0)
                allowed = is_allowed(user, operation.name, ledger_id)
                said = f"{operation.name} of ledger {ledger_id}: {answer}"
                status = answer.status
                assert (status is not Status.UNAUTHORIZED) is allowed, said
                if not allowed:
                    assert getattr(answer, "body", None) is None, said
                    assert not getattr(answer, "bodies", ()), said
                    assert traces(cluster) == before, said
                before = traces(cluster)
                tried += 1
    assert tried == {2: 6, 3: 11}[version] * 4


@pytest.mark.parametrize("is_hot", [False, True])
async def test_adds_in_one_chunk_are_allowed_and_refused_one_by_one(
    tmp_path: Path, is_hot: bool
) -> None:
    """The hot loop takes runs of adds. Those of ledgers that are not allowed end the run."""
    ledgers = dict.fromkeys(range(20, 30), "a") | dict.fromkeys(range(30, 40), "b")
    async with (
        permitted_cluster(tmp_path, GRANTS, ledgers) as (cluster, _),
        connection_of(cluster, "writer", 2) as connection,
    ):
        if is_hot:  # the ledgers of `a` are known to the connection, those of `b` to the bookie
            for ledger_id in range(20, 30):
                assert (await connection.call(add(ledger_id, 0), 5.0)).status is Status.OK
            async with connection_of(cluster, "other", 2) as other:
                for ledger_id in range(30, 40):
                    assert (await other.call(add(ledger_id, 0), 5.0)).status is Status.OK
        answers: list[Any] = []

        async def ask(body: AddRequest) -> None:
            answers.append(await connection.call(body, 5.0))

        async with trio.open_nursery() as nursery:
            for entry_id in range(1, 6):
                for ledger_id in range(20, 40):
                    nursery.start_soon(ask, add(ledger_id, entry_id))
        for answer in answers:
            allowed = answer.ledger_id < 30
            assert answer.status is (Status.OK if allowed else Status.UNAUTHORIZED)
        storage = cluster.bookies[0].storage
        assert storage is not None
        for ledger_id in range(20, 40):
            there = 5 if ledger_id < 30 else (0 if is_hot else -1)
            assert storage.last_entry_id(ledger_id) == there


async def test_one_lookup_per_ledger_serves_all_entries_and_connections(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, _):
        control = cluster.bookies[0].access
        assert control is not None
        for version in (2, 3):
            async with connection_of(cluster, "writer", version) as connection:
                for entry_id in range(50):
                    body = add(7, entry_id)
                    assert (await connection.call(body, 5.0)).status is Status.OK
        assert control.lookups == 1


async def test_adds_that_are_taken_many_at_a_time_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget: per entry there is no check and no lookup, and per chunk one comparison."""
    calls: Counter[str] = Counter()
    places: list[tuple[type[Any], str]] = [
        *((access.ConnectionAccess, name) for name in ("check", "check_add", "refresh")),
        (access.AdmittedLedgers, "admit"),
    ]
    for of, name in places:
        method = getattr(of, name)

        def counting(*arguments: Any, name: str = name, method: Any = method) -> Any:
            calls[name] += 1
            return method(*arguments)

        monkeypatch.setattr(of, name, counting)
    async with (
        permitted_cluster(tmp_path, GRANTS, {7: "a", 8: "a"}) as (cluster, _),
        connection_of(cluster, "writer", 2) as connection,
    ):
        for ledger_id in (7, 8):
            assert (await connection.call(add(ledger_id, 0), 5.0)).status is Status.OK
        server, control = cluster.bookies[0].server, cluster.bookies[0].access
        assert server is not None
        assert control is not None
        calls.clear()
        before = server.statistics()
        frames = [
            v2.encode_request(Request(2, 0, add(ledger_id, entry_id)))
            for entry_id in range(1, 501)
            for ledger_id in (7, 8)
        ]
        connection.send_adds(b"".join(frames))
        storage = cluster.bookies[0].storage
        assert storage is not None
        await until(lambda: storage.last_entry_id(8) == 500)
        done = server.statistics()
        assert done.requests.adds - before.requests.adds == 1000
        assert set(calls) <= {"refresh"}
        assert calls["refresh"] <= done.chunks - before.chunks
        assert control.lookups == 2


async def test_users_without_any_right_and_admins_cause_no_lookup(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, _):
        control = cluster.bookies[0].access
        assert control is not None
        for user in ("anonymous", "stranger", "operator", "admin"):
            async with connection_of(cluster, user, 3) as connection:
                for ledger_id in range(50):
                    await connection.call(ReadRequest(ledger_id, 0), 5.0)
        async with connection_of(cluster, "reader", 3) as connection:
            await connection.call(add(7, 0), 5.0)  # no ledger could allow it
        assert control.lookups == 0


async def followed(cluster: RealCluster, generation: int) -> None:
    control = cluster.bookies[0].access
    assert control is not None
    await until(lambda: control.generation > generation)


@pytest.mark.parametrize("version", [2, 3])
async def test_a_revocation_ends_what_open_connections_may_do(tmp_path: Path, version: int) -> None:
    async with (
        permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, permissions),
        connection_of(cluster, "writer", version) as connection,
    ):
        control = cluster.bookies[0].access
        assert control is not None
        for entry_id in range(3):
            assert (await connection.call(add(7, entry_id), 5.0)).status is Status.OK
        seen = control.generation
        await permissions.revoke([Grant("writer", Role.WRITE, "a")])
        await followed(cluster, seen)
        for body in (add(7, 3), add(7, 3, is_recovery=True), ReadRequest(7, 0)):
            assert (await connection.call(body, 5.0)).status is Status.UNAUTHORIZED
        seen = control.generation
        await permissions.grant([Grant("writer", Role.READ, "*")])
        await followed(cluster, seen)
        assert (await connection.call(ReadRequest(7, 0), 5.0)).status is Status.OK
        assert (await connection.call(add(7, 3), 5.0)).status is Status.UNAUTHORIZED


async def test_a_parked_long_poll_delivers_nothing_after_a_revocation(tmp_path: Path) -> None:
    async with (
        permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, permissions),
        connection_of(cluster, "writer", 2) as writer,
        connection_of(cluster, "reader", 3) as reader,
    ):
        control = cluster.bookies[0].access
        server = cluster.bookies[0].server
        assert control is not None
        assert server is not None
        await writer.call(add(7, 0), 5.0)
        answers: list[Any] = []

        async def poll() -> None:
            body = ReadRequest(7, -1, previous_lac=0, timeout_ms=60_000, is_piggyback=True)
            answers.append(await reader.call(body, 30.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await until(lambda: server.statistics().long_polls > 0)
            seen = control.generation
            await permissions.revoke([Grant("reader", Role.READ, "a")])
            await followed(cluster, seen)
            for entry_id in (1, 2):
                await writer.call(add(7, entry_id), 5.0)
        assert answers == [ReadResponse(Status.UNAUTHORIZED, 7, -1)]


async def test_a_ledger_can_be_used_as_soon_as_its_metadata_exists(tmp_path: Path) -> None:
    """Requests of other users for the id before that do not delay its writer."""
    async with (
        permitted_cluster(tmp_path, GRANTS, {}) as (cluster, _),
        connection_of(cluster, "other", 2) as squatter,
        connection_of(cluster, "writer", 2) as writer,
        MemoryStore(cluster.tree, now_ms) as store,
    ):
        for body in (add(70, 0), ReadRequest(70, 0, KEY, is_fencing=True)):
            assert (await squatter.call(body, 5.0)).status is Status.UNAUTHORIZED
        await LedgerStore(store).create(metadata_of(70, "a"))
        assert (await writer.call(add(70, 0), 5.0)).status is Status.OK


async def test_what_the_metadata_does_not_say_is_refused_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        permitted_cluster(tmp_path, GRANTS, {7: "a", 8: "a"}) as (cluster, _),
        connection_of(cluster, "writer", 2) as connection,
    ):
        assert (await connection.call(add(7, 0), 5.0)).status is Status.OK
        is_down = True
        read = LedgerStore.read

        async def unavailable(self: LedgerStore, ledger_id: int) -> Any:
            if is_down:
                raise MetadataUnavailable("the metadata is down")
            return await read(self, ledger_id)

        monkeypatch.setattr(LedgerStore, "read", unavailable)
        monkeypatch.setattr(access, "UNKNOWN_S", 60.0)
        assert (await connection.call(add(8, 0), 5.0)).status is Status.TOO_MANY_REQUESTS
        assert (await connection.call(add(7, 1), 5.0)).status is Status.OK, "it is known"
        storage = cluster.bookies[0].storage
        assert storage is not None
        assert storage.state(8) is None
        is_down = False
        async with connection_of(cluster, "writer", 2) as next_one:
            assert (await next_one.call(add(8, 0), 5.0)).status is Status.OK


async def test_damaged_permissions_allow_nothing_new_and_keep_what_was_followed(
    tmp_path: Path,
) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, _):
        async with (
            connection_of(cluster, "writer", 2) as connection,
            MemoryStore(cluster.tree, now_ms) as store,
        ):
            assert (await connection.call(add(7, 0), 5.0)).status is Status.OK
            await store.put(PATH, b"damage")
            await trio.testing.wait_all_tasks_blocked()
            assert (await connection.call(add(7, 1), 5.0)).status is Status.OK
        await cluster.stop(0)
        await cluster.start(0)
        async with connection_of(cluster, "admin", 2) as connection:
            assert (await connection.call(add(7, 2), 5.0)).status is Status.UNAUTHORIZED


async def test_without_permissions_everyone_may_do_everything(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, (), {}, permissions=False) as (cluster, _):
        assert cluster.bookies[0].access is None
        async with connection_of(cluster, "anonymous", 2) as connection:
            assert (await connection.call(add(7, 0), 5.0)).status is Status.OK
            read = await connection.call(ReadRequest(7, 0), 5.0)
            assert isinstance(read, ReadResponse)
            assert read.body == entry_of(7, 0)


async def test_a_frame_of_an_older_version_is_refused_in_that_version(tmp_path: Path) -> None:
    async with permitted_cluster(tmp_path, GRANTS, {7: "a"}) as (cluster, _):
        stream = await trio.open_tcp_stream(*cluster.bookies[0].address)
        async with stream:
            await stream.send_all(v2.encode_request(Request(1, 0, ReadRequest(7, 0))))
            answer = await stream.receive_some(100)
        assert v2.decode_response(answer[4:]).body == ReadResponse(Status.UNAUTHORIZED, 7, 0)
