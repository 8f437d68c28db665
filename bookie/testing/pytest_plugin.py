"""Fixtures for tests of programs that use ledgerstream; pytest finds them by itself.

Every pytest run in which ledgerstream is installed loads this module: nothing heavy may be imported
here before a fixture is used. Described in docs/testing-your-application.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from bookie.testing.cluster import SimCluster
    from bookie.testing.in_process import InProcessCluster

ResultT = TypeVar("ResultT")

SEED_OPTION = "--ledgerstream-seed"
DAY_S = 86_400.0
"""Virtual time that a run may take. An idle hour of it costs a second of CPU."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ledgerstream")
    group.addoption(
        SEED_OPTION,
        type=int,
        default=None,
        metavar="N",
        help="run every simulated_cluster with this one seed, to repeat a failure",
    )


@pytest.fixture
def ledgerstream_cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    """Three real bookies in this process, ready in milliseconds; `.uri` is their address.

    For programs of any kind: trio, blocking, asyncio, other processes. See also `.crash(bookie)`
    and `.restart(bookie)`.
    """
    from bookie.testing.in_process import InProcessCluster

    with InProcessCluster(tmp_path) as cluster:
        yield cluster


class SimulatedCluster:
    """A cluster in virtual time; made by the fixture `simulated_cluster(seed=...)`.

    Args:
        seed: all chance comes from it: the same seed gives the same run.
        bookies: their number.
        time_limit_s: virtual seconds after which a run counts as stuck.
    """

    def __init__(self, seed: int, *, bookies: int, time_limit_s: float) -> None:
        self.seed = seed
        self._bookies = bookies
        self._time_limit_s = time_limit_s

    def run(self, scenario: Callable[[SimCluster], Awaitable[ResultT]]) -> ResultT:
        """Runs `scenario(cluster)` in a new simulated world and returns its result.

        Called from a plain test function, not from within trio or asyncio. What the scenario
        raises is raised here, with a note how to repeat the run.
        """
        from bookie.testing.cluster import simulate

        try:
            return simulate(
                scenario, self.seed, bookies=self._bookies, time_limit_s=self._time_limit_s
            )
        except BaseException as error:
            error.add_note(
                f"simulated with seed {self.seed}; repeat with: pytest {SEED_OPTION}={self.seed}"
            )
            raise


class MakeSimulatedCluster:
    """The value of the fixture `simulated_cluster`: call it with a seed."""

    def __init__(self, seed: int | None) -> None:
        self._only_seed = seed

    def __call__(
        self, seed: int = 0, *, bookies: int = 3, time_limit_s: float = DAY_S
    ) -> SimulatedCluster:
        """Returns a cluster whose whole run is a function of `seed` (or of --ledgerstream-seed)."""
        chosen = seed if self._only_seed is None else self._only_seed
        return SimulatedCluster(chosen, bookies=bookies, time_limit_s=time_limit_s)

    def run_seeds(
        self,
        seeds: Iterable[int],
        scenario: Callable[[SimCluster], Awaitable[object]],
        *,
        bookies: int = 3,
        time_limit_s: float = DAY_S,
    ) -> None:
        """Runs the scenario once with each seed, or only with --ledgerstream-seed. The first
        failure ends it, and names its seed. `time_limit_s` bounds the virtual time of a run."""
        for seed in seeds if self._only_seed is None else [self._only_seed]:
            SimulatedCluster(seed, bookies=bookies, time_limit_s=time_limit_s).run(scenario)


@pytest.fixture
def simulated_cluster(request: pytest.FixtureRequest) -> MakeSimulatedCluster:
    """A cluster in virtual time, with faults on demand: `simulated_cluster(seed=7).run(...)`."""
    seed: int | None = request.config.getoption(SEED_OPTION)
    return MakeSimulatedCluster(seed)
