"""A whole simulated cluster (network, disks, metadata and time) from one seed, in one process.

For tests: ours in `tests/sim`, and those of users (docs/testing.md). Never for production. Names
are imported on first use, because every pytest run loads the pytest plugin.

cluster: a simulated cluster: bookies and clients that start, die and restart.
in_process: a real cluster in a thread, with disks in memory.
pytest_plugin: fixtures for users' tests.
scheduler: a seeded order of tasks, and virtual time.
process: a task tree that can be killed.
network, transport: the simulated network and its connections.
disk, file, inode, volumes: the simulated disks.
key_value: the simulated store of an index.
memory_key_value: a store in memory.
metastore: the simulated metadata store.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.testing.cluster import SimCluster, random_config, simulate, small_config
    from bookie.testing.disk import CrashKind, DiskOptions, SimDisk
    from bookie.testing.in_process import InProcessCluster
    from bookie.testing.metastore import MetadataOptions, SimMetadata
    from bookie.testing.network import NetworkOptions, SimNetwork
    from bookie.testing.process import SimProcess
    from bookie.testing.pytest_plugin import MakeSimulatedCluster, SimulatedCluster
    from bookie.testing.scheduler import Simulation, SimulationStuck, run_simulated

__all__ = [
    "CrashKind",
    "DiskOptions",
    "InProcessCluster",
    "MakeSimulatedCluster",
    "MetadataOptions",
    "NetworkOptions",
    "SimCluster",
    "SimDisk",
    "SimMetadata",
    "SimNetwork",
    "SimProcess",
    "SimulatedCluster",
    "Simulation",
    "SimulationStuck",
    "random_config",
    "run_simulated",
    "simulate",
    "small_config",
]

_HOMES = {
    "cluster": "SimCluster random_config simulate small_config",
    "disk": "CrashKind DiskOptions SimDisk",
    "in_process": "InProcessCluster",
    "metastore": "MetadataOptions SimMetadata",
    "network": "NetworkOptions SimNetwork",
    "process": "SimProcess",
    "pytest_plugin": "MakeSimulatedCluster SimulatedCluster",
    "scheduler": "Simulation SimulationStuck run_simulated",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
