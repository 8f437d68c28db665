"""Fixtures of the interop suite: Java processes, clusters of Apache's bookies and of ours.

JVMs and ZooKeeper live as long as the session, bookies as long as a module; every module has a
ledgers root of its own, and so has every set of Apache bookies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache_bookie import ApacheBookie, bookie_settings, start_all
from tests.interop.build import require_tools
from tests.interop.java_client import JavaClient, JavaVm
from tests.interop.mixed_bookies import BookieProcess, running_bookies
from tests.interop.our_bookies import OurBookies
from tests.interop.results import expect_results
from tests.interop.results import pytest_configure as pytest_configure  # the plugin's hooks
from tests.interop.results import pytest_runtest_makereport as pytest_runtest_makereport
from tests.interop.results import pytest_sessionfinish as pytest_sessionfinish
from tests.interop.versions import VERSIONS
from tests.zookeeper import RunningZooKeeper

GetJava = Callable[..., AbstractAsyncContextManager[JavaClient]]
GetVm = Callable[[str], JavaVm]
GetSharedJava = Callable[..., JavaClient]
GetApacheBookies = Callable[..., "ApacheBookies"]

OUR_BOOKIES = 4

LONGEST_FIRST = (
    "test_takeover.py",
    "test_autorecovery.py",
    "test_autorecovery_shell.py",
    "test_our_client_apache_bookies.py",
    "test_mixed.py",
    "test_java_client_bookie_failures.py",
    "test_mixed_autorecovery.py",
    "test_our_autorecovery.py",
    "test_broker.py",
    "test_java_client_tools.py",
    "test_our_client_apache_settings.py",
    "test_shell.py",
    "test_java_client_rejections.py",
    "test_pulsar.py",
)
"""Files that take minutes, in order. Test processes run a file at a time and end together only if
none of these comes last. This is an estimate; `--durations=0` measures."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    expect_results(config, items)
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    ours = [n for n, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    in_order = sorted((items[n] for n in ours), key=lambda i: places.get(i.path.name, len(places)))
    for n, item in zip(ours, in_order, strict=True):
        items[n] = item


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """A released version of Apache BookKeeper."""
    require_tools()
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def java_vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetVm]:
    """Returns the process of a version, shared by the tests that do not end it."""
    require_tools()
    logs = tmp_path_factory.mktemp("java")
    running: dict[str, JavaVm] = {}

    def get(version: str) -> JavaVm:
        if version not in running:
            running[version] = JavaVm(version, logs / f"{version}.log", heap_mb=384)
        return running[version]

    yield get
    for vm in running.values():
        vm.stop()


@pytest.fixture(scope="session")
def new_root(shared_zookeeper: RunningZooKeeper) -> Callable[[str], str]:
    """Returns new cluster URIs: `new_root(name)`.

    Bookies of ledgerstream create the layout themselves; `apache_bookies` does it for Apache's.
    """
    require_tools()
    numbers = itertools.count(1)

    def get(name: str) -> str:
        return f"zk://{shared_zookeeper.address}/{name}-{next(numbers)}/ledgers"

    return get


@pytest.fixture(scope="module")
def zookeeper_root(new_root: Callable[[str], str], request: pytest.FixtureRequest) -> str:
    """The URI of the module's own cluster."""
    return new_root(request.module.__name__.rpartition(".")[2])


@pytest.fixture(scope="module")
def our_bookies(
    zookeeper_root: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OurBookies]:
    """Four bookies of ledgerstream in the module's cluster; a test that kills one restarts it."""
    bookies = OurBookies(tmp_path_factory.mktemp("bookies"), zookeeper_root)
    try:
        bookies.start(*range(OUR_BOOKIES))
        yield bookies
    finally:
        bookies.kill_all()


@pytest.fixture
def java(java_vm: GetVm) -> GetJava:
    """Opens clients in the version's shared process.

    `async with java(version, uri, v2=True, explicitLacInterval=50) as client`.
    """

    def get(
        version: str, uri: str, *, v2: bool = False, **settings: Any
    ) -> AbstractAsyncContextManager[JavaClient]:
        return JavaClient.open(java_vm(version), uri, v2=v2, waits_closed=False, **settings)

    return get


class ApacheBookies:
    """Bookies of one Apache version in a cluster of their own."""

    def __init__(self, version: str, directory: Path, uri: str) -> None:
        self.version = version
        self.uri = uri
        self.bookies: list[ApacheBookie] = []
        self._directory = directory

    def add(self, count: int = 1, **settings: Any) -> list[ApacheBookie]:
        """Starts more bookies, with settings as for ApacheBookie."""
        new = []
        for _ in range(count):
            directory = self._directory / f"apache-{len(self.bookies)}"
            new.append(ApacheBookie(self.version, directory, self.uri, **settings))
            self.bookies.append(new[-1])
        start_all(new)
        return new

    def bookie(self, bookie_id: str) -> ApacheBookie:
        return next(b for b in self.bookies if b.bookie_id == bookie_id)

    def kill_all(self) -> None:
        for bookie in self.bookies:
            bookie.kill()


def init_cluster(vm: JavaVm, uri: str) -> None:
    """Creates the layout of an empty cluster with Apache's own command."""
    settings = bookie_settings(Path("unused"), uri, 3181)
    vm.call_sync("init_cluster", settings={name: str(value) for name, value in settings.items()})


@pytest.fixture(scope="module")
def apache_bookies(
    java_vm: GetVm, new_root: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GetApacheBookies]:
    """Returns Apache bookies of the module, three by default: `apache_bookies(version)`.

    The same version and storage give the same bookies; those that a test has killed are restarted.
    """
    made: dict[tuple[str, str], ApacheBookies] = {}

    def get(version: str, count: int = 3, **settings: Any) -> ApacheBookies:
        key = (version, repr(sorted(settings.items())))
        if key not in made:
            uri = new_root(f"apache-{version}")
            init_cluster(java_vm(version), uri)
            directory = tmp_path_factory.mktemp(f"apache-{version}")
            made[key] = ApacheBookies(version, directory, uri)
        cluster = made[key]
        down = [bookie for bookie in cluster.bookies if not bookie.is_running]
        start_all(down)
        if len(cluster.bookies) < count:
            cluster.add(count - len(cluster.bookies), **settings)
        return cluster

    yield get
    for cluster in made.values():
        cluster.kill_all()


@pytest.fixture(scope="session")
def mixed_cluster(
    java_vm: GetVm, new_root: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Mapping[str, BookieProcess]]]:
    """The URI of a cluster, and its bookies by name: five of each kind, Apache's of all versions.

    A test that kills a bookie restarts it (`mixed_bookies.open_mixed_bookies`).
    """
    uri = new_root("mixed")
    init_cluster(java_vm(VERSIONS[-1]), uri)
    with running_bookies(tmp_path_factory.mktemp("mixed"), uri, ours=5, apaches=5) as bookies:
        yield uri, bookies


@pytest.fixture(scope="module")
def java_shared(java_vm: GetVm) -> Iterator[GetSharedJava]:
    """Returns clients that tests of a module share: `java_shared(version, uri, v2=True, ...)`.

    The same arguments give the same client. Apache's client takes two seconds to close; this is
    not waited for.
    """
    made: dict[str, JavaClient] = {}

    def get(version: str, uri: str, *, v2: bool = False, **settings: Any) -> JavaClient:
        key = repr((version, uri, v2, sorted(settings.items())))
        if key not in made:
            made[key] = JavaClient.open_sync(java_vm(version), uri, v2=v2, **settings)
        return made[key]

    yield get
    for client in made.values():
        client.forget()


@pytest.fixture(params=["v2", "v3"])
def wire(request: pytest.FixtureRequest) -> str:
    """The version of the wire protocol that the client uses."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def client(
    version: str, wire: str, our_bookies: OurBookies, java_shared: GetSharedJava
) -> JavaClient:
    """Apache's client of this version and wire protocol on the module's ledgerstream bookies."""
    return java_shared(version, our_bookies.uri, v2=wire == "v2")


@pytest.fixture
def client_v3(version: str, our_bookies: OurBookies, java_shared: GetSharedJava) -> JavaClient:
    """Apache's client of this version, for tests where the wire protocol makes no difference."""
    return java_shared(version, our_bookies.uri)
