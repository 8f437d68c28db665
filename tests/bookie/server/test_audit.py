"""What a bookie records of its peers: over real sockets into a real file, by v2 and v3."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bookie.core.audit_rate import BURST
from bookie.server import audit
from bookie.server.audit import QUEUE_BYTES_MAX, REPORT_S, AuditLog, ConnectionAudit
from ledger.core.authentication.names import SCRAM_SHA_256
from ledger.core.permissions import Grant, Role
from ledger.credentials import Credentials, Secret
from ledger.errors import Status, Unauthorized
from ledger.wire import v2
from ledger.wire.messages import ForceLedgerRequest, ReadLacRequest, ReadRequest, Request
from tests.bookie.server.permitted_cluster import (
    connection_of,
    named_users,
    permitted_cluster,
    until,
)
from tests.bookie.server.test_authentication import (
    PASSWORD,
    connected,
    guarded,
    source,
    unwrapped,
)
from tests.bookie.server.test_server import KEY, SETTINGS, add
from tests.real_cluster import RealCluster, real_cluster

_VERSIONS = pytest.mark.parametrize("version", [2, 3])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def lines(cluster: RealCluster, path: Path, count: int) -> list[dict[str, Any]]:
    """Returns the lines in the file, once there are `count`, without what differs in each run."""
    log = cluster.bookies[0].audit
    assert log is not None
    await until(lambda: log.counts.written >= count)
    found = lines_of(path)
    for line in found:
        assert line.pop("time").endswith("Z")
        assert line.pop("bookie") == cluster.bookies[0].bookie_id
        assert line.pop("peer", "127.0.0.1:").startswith("127.0.0.1")
    return found


@_VERSIONS
async def test_the_first_use_of_a_ledger_is_recorded_and_no_other(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "audit.jsonl"
    async with real_cluster(tmp_path, 1, **SETTINGS, audit_file=str(path)) as cluster:
        for _ in range(2):  # connections
            async with connected(cluster, version) as peer:
                for entry_id in range(20):
                    assert (await peer.call(add(7, entry_id), 5)).status is Status.OK
                    assert (await peer.call(ReadRequest(7, entry_id), 5)).status is Status.OK
                await peer.call(ReadRequest(8, 0), 5)
                if version == 3:
                    await peer.call(ReadLacRequest(7), 5)
                    await peer.call(ForceLedgerRequest(7), 5)
        async with connected(cluster, version) as peer:
            await peer.call(ReadRequest(7, 0, KEY, is_fencing=True), 5)
        found = await lines(cluster, path, 7)
    user = {"outcome": "allowed", "user": "anonymous"}
    uses = [
        {"action": "write", **user, "ledger": 7},
        {"action": "read", **user, "ledger": 7},
        {"action": "read", **user, "ledger": 8},
    ]
    assert found == [*uses, *uses, {"action": "fence", **user, "ledger": 7}]


async def test_adds_that_are_taken_many_at_a_time_cost_a_line_per_ledger_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget: 2,000 adds of two ledgers, which the bookie knew before, are two uses."""
    path = tmp_path / "audit.jsonl"
    calls = []
    used = ConnectionAudit.used

    def counting(self: ConnectionAudit, *arguments: Any) -> None:
        calls.append(arguments)
        used(self, *arguments)

    monkeypatch.setattr(ConnectionAudit, "used", counting)
    async with real_cluster(tmp_path, 1, **SETTINGS, audit_file=str(path)) as cluster:
        async with connected(cluster, 2) as peer:
            for ledger_id in (7, 8):
                await peer.call(add(ledger_id, 0), 5)
        calls.clear()
        storage = cluster.bookies[0].storage
        assert storage is not None
        async with connected(cluster, 2) as peer:
            frames = [
                v2.encode_request(Request(2, 0, add(ledger_id, entry_id)))
                for entry_id in range(1, 1001)
                for ledger_id in (7, 8)
            ]
            peer.send_adds(b"".join(frames))
            await until(lambda: storage.last_entry_id(8) == 1000)
        found = await lines(cluster, path, 4)
    assert [(line["action"], line["ledger"]) for line in found] == [("write", 7), ("write", 8)] * 2
    assert len(calls) <= 3, "the first add of a connection is looked at alone"


async def test_without_a_file_nothing_is_recorded_and_the_hot_loop_is_as_before(
    tmp_path: Path,
) -> None:
    async with real_cluster(tmp_path, 1, **SETTINGS) as cluster, connected(cluster, 2) as peer:
        await peer.call(add(7, 0), 5)
        bookie = cluster.bookies[0]
        assert bookie.audit is None
        assert bookie.server is not None
        (connection,) = bookie.server._connections.values()
        assert connection._audit is None
        assert bookie.storage is not None
        assert connection._intake._states[0] is bookie.storage.directories[0].states


@_VERSIONS
async def test_who_authenticates_is_recorded_once_and_who_fails_each_time(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "audit.jsonl"
    wrong = Credentials(user="ann", password=Secret("h4ddock"))
    async with guarded(tmp_path, audit_file=str(path)) as cluster:
        async with connected(cluster, version, source(PASSWORD)) as peer:
            await peer.call(ReadRequest(7, 0), 5)
        with pytest.raises(Unauthorized), unwrapped():
            async with connected(cluster, version, source(wrong)):
                pass
        async with connected(cluster, version) as peer:
            await peer.call(add(7, 0), 5)
        found = await lines(cluster, path, 4)
    mechanism = {"mechanism": SCRAM_SHA_256}
    assert found == [
        {"action": "authenticate", "outcome": "ok", "user": "ann", **mechanism},
        {"action": "read", "outcome": "allowed", "user": "ann", "ledger": 7},
        {
            "action": "authenticate", "outcome": "refused", "user": "ann", **mechanism,
            "cause": "wrong password, or no such user",
        },
        {
            "action": "write", "outcome": "refused", "user": "anonymous", "ledger": 7,
            "request": "add", "cause": "came before authentication",
        },
    ]  # fmt: skip
    assert not any(secret in path.read_text() for secret in ("swordfish", "h4ddock"))


@pytest.mark.usefixtures(named_users.__name__)
@_VERSIONS
async def test_a_user_without_the_right_is_recorded_for_a_while_and_then_counted(
    tmp_path: Path, version: int
) -> None:
    path = tmp_path / "audit.jsonl"
    grants = (Grant("ann", Role.READ, "a"),)
    opened = permitted_cluster(tmp_path, grants, {7: "a", 8: "b"}, audit_file=str(path))
    async with opened as (cluster, _):
        log = cluster.bookies[0].audit
        assert log is not None
        async with connection_of(cluster, "ann", version) as peer:
            assert (await peer.call(ReadRequest(7, 0), 5)).status is not Status.UNAUTHORIZED
            for _ in range(200):
                assert (await peer.call(ReadRequest(8, 0), 5)).status is Status.UNAUTHORIZED
        await until(lambda: log.counts.written > BURST)
        assert 150 < log.counts.left_out < 200
    found = lines_of(path)
    refused = [line for line in found if line["outcome"] == "refused"]
    assert {(one["action"], one["user"], one["ledger"]) for one in refused} == {("read", "ann", 8)}
    assert len(refused) == 200 - log.counts.left_out
    assert [one["ledger"] for one in found if one["outcome"] == "allowed"] == [7]
    assert found[-1]["action"] == "audit", "a bookie that ends reports what was left out"
    assert found[-1]["refusals"] == log.counts.left_out
    assert found[-1]["peer"] == "127.0.0.1"


async def test_a_wrong_key_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with real_cluster(tmp_path, 1, **SETTINGS, audit_file=str(path)) as cluster:
        async with connected(cluster, 2) as peer:
            await peer.call(add(7, 0), 5)
            await peer.call(ReadRequest(7, 0, b"another key is here!", is_fencing=True), 5)
        found = await lines(cluster, path, 3)
    assert [(one["action"], one["outcome"]) for one in found] == [
        ("write", "allowed"), ("fence", "allowed"), ("fence", "refused"),
    ]  # fmt: skip
    assert "another" not in path.read_text()


class Disk:
    """A file that can fail or hang."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.calls = 0
        self.fails = self.hangs = False

    async def write(self, written: Sequence[bytes]) -> int:
        self.calls += 1
        if self.hangs:
            await trio.sleep_forever()
        if self.fails:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lines += [json.loads(line) for line in written]
        return len(written)


async def test_a_disk_that_fails_costs_lines_which_are_counted_and_reported_later(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    log = AuditLog(disk.write, now_ms=lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        disk.fails = True
        for number in range(5):
            log.record("read", "allowed", ledger=number)
            await trio.sleep(1)
        assert (log.counts.written, log.counts.lost) == (0, 5)
        assert caplog.text.count("audit log not written") == 1
        calls = disk.calls
        await trio.sleep(10 * REPORT_S)
        assert disk.calls == calls, "nothing happens when idle"
        disk.fails = False
        log.record("read", "allowed", ledger=5)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [(one["action"], one["outcome"]) for one in disk.lines] == [
        ("audit", "lost"), ("read", "allowed"),
    ]  # fmt: skip
    assert disk.lines[0]["lines"] == 5
    assert (log.counts.written, log.counts.lost) == (2, 5)


async def test_a_disk_that_hangs_keeps_nobody(autojump_clock: MockClock) -> None:
    disk = Disk()
    disk.hangs = True
    log = AuditLog(disk.write, now_ms=lambda: 0)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.record("read", "allowed", ledger=1)
        await trio.sleep(1)
        count = 0
        while not log.counts.lost:
            log.record("read", "allowed", ledger=1, cause="x" * 400)
            count += 1
        assert count * 400 < QUEUE_BYTES_MAX
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= 2 * audit._WRITE_S_MAX
    assert log.counts.lost == count + 1


async def test_what_was_left_out_is_reported_once_a_minute(autojump_clock: MockClock) -> None:
    disk = Disk()
    log = AuditLog(disk.write, now_ms=lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for _ in range(BURST + 3):
            log.refused("read", "refused", peer="10.0.0.7:999", user="ann")
        log.refused("read", "refused", peer="10.0.0.8:999", user="bob")
        await trio.sleep(REPORT_S - 1)
        assert len(disk.lines) == BURST + 1
        await trio.sleep(2)
        assert {k: v for k, v in disk.lines[-1].items() if k != "time"} == {
            "bookie": "", "action": "audit", "outcome": "left out", "peer": "10.0.0.7",
            "refusals": 3,
        }  # fmt: skip
        calls = disk.calls
        await trio.sleep(10 * REPORT_S)
        assert disk.calls == calls
        nursery.cancel_scope.cancel()


def test_a_connection_remembers_a_bounded_number_of_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    from bookie.core.operations import READ

    monkeypatch.setattr(audit, "USES_MAX", 10)
    disk = Disk()
    log = AuditLog(disk.write, now_ms=lambda: 0)
    one = ConnectionAudit(log, "10.0.0.7:999")
    for _ in range(2):
        for ledger_id in range(25):
            one.used("ann", READ, ledger_id)
            one.used("ann", READ, ledger_id)
    assert len(one._uses) <= 10
    assert len(log._lines) == 50
