"""The canary on real bookies: it alerts when something is wrong, and only then."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import trio

from ledger.core.copies import CopyVerdict
from ledger.errors import InvalidArgument
from stream.canary import MARK, Canary, CanaryOptions, CanaryRound
from stream.core.entry.records import Record
from stream.errors import TakenOver
from stream.namespace import Namespace
from tests.stream.real_namespace import a_namespace

QUICK = CanaryOptions(interval_s=0.05, timeout_s=5, remembered=5, record_bytes=100)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.canary._TRIM_EVERY", 5)
    monkeypatch.setattr("stream.canary._READ_AGAIN_S", 0.01)


async def test_a_healthy_stream_causes_no_alert_and_does_not_grow(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        rounds: list[CanaryRound] = []
        verdict = await Canary(namespace, "canary", QUICK).run(rounds.append, rounds=23)
        assert verdict is CopyVerdict.WHOLE, [r.alerts for r in rounds]
        assert [report.number for report in rounds] == list(range(1, 24))
        for report in rounds:
            assert (len(report.acks), report.not_yet) == (3, ())
            assert report.append_ms is not None
            assert report.tail_ms is not None
            assert report.verify_ms is not None
            assert 0 < report.append_ms <= report.tail_ms
        assert any(report.checked_again for report in rounds)
        assert (await namespace.info("canary")).records <= 3 * QUICK.remembered
        assert await namespace.trash() == []
        facts = rounds[0].as_dict()
        assert (facts["round"], facts["verdict"], facts["alerts"]) == (1, "whole", [])
        # Another canary continues where this one ended.
        assert await Canary(namespace, "canary", QUICK).run(rounds.append, rounds=2) == 0


async def test_a_stream_that_is_not_a_canarys_is_left_alone(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        async with namespace.writer("s", create=True) as writer:
            await writer.append(b"precious")
        with pytest.raises(InvalidArgument, match="not a canary's"):
            await Canary(namespace, "s", QUICK).run(lambda report: None, rounds=1)
        assert (await namespace.info("s")).epoch == 1


async def test_a_takeover_ends_the_canary(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        begun, ended = trio.Event(), trio.Event()

        async def run() -> None:
            with pytest.raises(TakenOver):
                await Canary(namespace, "canary", QUICK).run(lambda report: begun.set())
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await begun.wait()
            async with namespace.writer("canary") as writer:
                await writer.append(MARK + b"of another")
                with trio.fail_after(10):
                    await ended.wait()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda record: [], "has not shown"),
        (lambda record: [record, record], "went from sequence"),
        (lambda record: [record._replace(value=b"?")], "another record"),
    ],
    ids=["lost", "duplicated", "changed"],
)
async def test_a_wrong_tail_is_detected(tmp_path: Path, wrong: object, says: str) -> None:
    async with a_namespace(tmp_path) as namespace:
        take = Canary._take

        def take_wrong(self: Canary, record: Record) -> None:
            for shown in wrong(record) if record.sequence == 1 else [record]:  # type: ignore[operator]
                take(self, shown)

        rounds: list[CanaryRound] = []
        options = CanaryOptions(interval_s=0.05, timeout_s=0.5)
        with mock.patch.object(Canary, "_take", take_wrong):
            verdict = await Canary(namespace, "canary", options).run(rounds.append, rounds=4)
        assert verdict is CopyVerdict.DAMAGE
        assert rounds[0].alerts == []
        assert any(says in text for report in rounds[1:] for _, text in report.alerts), rounds


@pytest.mark.parametrize(
    "setting", [{"interval_s": 0.0}, {"record_bytes": 10}, {"remembered": 0}, {"timeout_s": 1e9}]
)
def test_options_that_cannot_work_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(setting))):
        CanaryOptions(**setting)  # type: ignore[arg-type]


async def test_zero_rounds_are_refused(tmp_path: Path) -> None:
    async with a_namespace(tmp_path) as namespace:
        assert isinstance(namespace, Namespace)
        with pytest.raises(InvalidArgument, match="0 rounds"):
            await Canary(namespace, "canary").run(lambda report: None, rounds=0)
