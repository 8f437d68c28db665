"""A cluster in a bottle: network, disks, metadata and time under one seed, in one process.

For tests: ours in `tests/sim`, and users' own. Nothing in here is used in production.
"""

from __future__ import annotations

from bookie.testing.scheduler import Simulation, SimulationStuck, run_simulated

__all__ = ["Simulation", "SimulationStuck", "run_simulated"]
