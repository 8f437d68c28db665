"""What a bookie records of HTTP: what was changed, by whom, and who was refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bookie.monitoring.test_http import served
from tests.bookie.monitoring.test_http_authentication import ask, basic, guarded
from tests.bookie.server.test_audit import lines, lines_of

GC = "/api/v1/bookie/gc"
READ_ONLY = "/api/v1/bookie/state/readonly"


async def test_changes_are_recorded_with_what_was_asked_and_reading_is_not(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with served(tmp_path, audit_file=str(path)) as (cluster, client):
        assert (await client.ask("/metrics")).status == 200
        assert (await client.ask(GC)).status == 200
        body = json.dumps({"readOnly": True}).encode()
        assert (await client.ask(READ_ONLY, "PUT", body)).status == 200
        enabled = "/api/v1/autorecovery/status?enabled=false&token=s3cret"
        assert (await client.ask(enabled, "PUT")).status == 200
        assert (await client.ask(GC, "PUT", b'{"password": "s3cret"}')).status == 400
        assert (await client.ask(GC, "PUT", host="evil.example")).status == 403
        found = await lines(cluster, path, 4)
    user = {"user": "anonymous"}
    assert found == [
        {
            "action": "http", "outcome": "ok", **user, "request": f"PUT {READ_ONLY}", "status": 200,
            "arguments": {"readOnly": True},
        },
        {
            "action": "http", "outcome": "ok", **user,
            "request": "PUT /api/v1/autorecovery/status", "status": 200,
            "arguments": {"enabled": "false"},
        },
        {"action": "http", "outcome": "failed", **user, "request": f"PUT {GC}", "status": 400},
        {"action": "http", "outcome": "refused", **user, "request": f"PUT {GC}", "status": 403},
    ]  # fmt: skip
    assert "s3cret" not in path.read_text()


async def test_users_are_named_and_wrong_passwords_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with guarded(tmp_path, audit_file=str(path)) as (cluster, client):
        assert (await ask(client, GC, basic("ann", "swordfish"), "PUT")).status == 200
        assert (await ask(client, "/metrics", basic("ann", "h4ddock"))).status == 401
        assert (await ask(client, "/metrics", None)).status == 401
        found = await lines(cluster, path, 4)
    assert [(one["action"], one["outcome"], one.get("user")) for one in found] == [
        ("http", "ok", "ann"),
        ("authenticate", "refused", "ann"),
        ("http", "refused", "anonymous"),
        ("http", "refused", "anonymous"),
    ]
    assert all("h4ddock" not in json.dumps(one) for one in lines_of(path))
