"""A cluster in a bottle: network, disks, metadata and time under one seed, in one process.

For tests: ours in `tests/sim`, and users' own (docs/testing.md). Never used in production.
"""

from __future__ import annotations

from bookie.testing.cluster import SimCluster, random_config, simulate, small_config
from bookie.testing.disk import CrashKind, DiskOptions, SimDisk
from bookie.testing.metastore import MetadataOptions, SimMetadata
from bookie.testing.network import NetworkOptions, SimNetwork
from bookie.testing.process import SimProcess
from bookie.testing.scheduler import Simulation, SimulationStuck, run_simulated

__all__ = [
    "CrashKind",
    "DiskOptions",
    "MetadataOptions",
    "NetworkOptions",
    "SimCluster",
    "SimDisk",
    "SimMetadata",
    "SimNetwork",
    "SimProcess",
    "Simulation",
    "SimulationStuck",
    "random_config",
    "run_simulated",
    "simulate",
    "small_config",
]
