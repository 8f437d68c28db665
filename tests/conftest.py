"""Fixtures that several suites share."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from bookie.standalone import cluster
from bookie.standalone.zookeeper_server import ZooKeeperMissing, require_zookeeper
from ledger.credentials import CREDENTIALS_VARIABLE, TLS_VARIABLES, WHO_VARIABLES

# Before they are imported: assertions in helpers then report as much as those in tests. A program
# that runs tests is in such a package, and has imported it.
_PACKAGES = {f"tests.{path.parent.name}" for path in Path(__file__).parent.glob("*/__init__.py")}
pytest.register_assert_rewrite(*sorted(_PACKAGES - sys.modules.keys()))

from tests import effort  # noqa: E402
from tests.zookeeper import RunningZooKeeper, running_zookeeper  # noqa: E402

# How long an example takes says how busy the machine is, and nothing about the example. Developers'
# machines look at other examples each time, and so does the night; a change is judged by the same
# ones each time.
settings.register_profile(
    "any-machine",
    deadline=None,
    derandomize=os.environ.get("CI") == "true" and not effort.IS_NIGHT,
    max_examples=effort.scaled(ci=effort.EXAMPLES_CI, night=effort.EXAMPLES_NIGHT),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any-machine")


def pytest_configure() -> None:
    """A shell that starts tests in the background has them, and all they start, ignore Ctrl-C; what
    it does is tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in (CREDENTIALS_VARIABLE, *WHO_VARIABLES, *TLS_VARIABLES):
        os.environ.pop(name, None)  # the developer's own credentials are for no cluster of a test
    share = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if share:
        # A port that one process found free, another would find free, too, until it is bound.
        cluster.PORTS = cluster.PORTS[int(share) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Keeps the collected tests out of all searches for garbage, which they would make long."""
    gc.freeze()
    gc.enable()


def skip_here(reason: str) -> NoReturn:
    """Skips the test, with its reason, because this machine lacks something. In CI, which has
    all that tests need, it is a failure: a suite that is skipped there proves nothing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"not skipped in CI: {reason}", pytrace=False)
    pytest.skip(reason)


def skip_without_zookeeper() -> None:
    try:
        require_zookeeper()
    except ZooKeeperMissing as error:
        skip_here(str(error))


@pytest.fixture(scope="session")
def shared_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    """One server for all tests that leave it running; each uses paths of its own."""
    skip_without_zookeeper()
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper_server(tmp_path: Path) -> Iterator[RunningZooKeeper]:
    """A server of the test's own, to kill and pause."""
    skip_without_zookeeper()
    with running_zookeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def impatient_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries at once what may have been in flight."""
    monkeypatch.setattr("ledger.verify._LOOK_AGAIN_S", 0.02)
    monkeypatch.setattr("ledger.copy_reader._PAUSE_S", 0.02)


class _InternalErrors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def internal_errors() -> Iterator[list[logging.LogRecord]]:
    """A bookie survives its own bugs, but no test does: clear the list of what was expected."""
    handler, logger = _InternalErrors(), logging.getLogger("bookie.server.internal_errors")
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)
    reported = [handler.format(record) for record in handler.records]
    assert not reported, "a bookie logged a mistake of its own:\n" + "\n".join(reported)
