"""The command line of campaigns with a total amount of work: each seed does a share of it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from bookie.testing.process import leaves_of


def run_worlds(
    module: str,
    what: str,
    help_text: str,
    per_world_max: int,
    run_world: Callable[[int, int], dict[str, int]],
) -> int:
    """Reads `--<what>` and `--seed`, runs worlds until so much was done, and prints what they
    counted. Returns the exit code: 1 when a world failed, of which it says how to run it again."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument(f"--{what}", type=int, default=200, help=f"{help_text} (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first world (default 0)")
    options = parser.parse_args()
    wanted: int = getattr(options, what)
    begun, totals, left, seed = time.perf_counter(), dict[str, int](), wanted, options.seed
    while left > 0:
        share = min(left, per_world_max)
        try:
            counts = run_world(seed, share)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what this seed found
            for leaf in leaves_of(error):
                print(f"seed {seed} FAILED: {type(leaf).__name__}: {leaf}")
            print(f"again: python -m {module} --seed {seed} --{what} {share}")
            return 1
        for name, number in counts.items():
            totals[name] = totals.get(name, 0) + number
        left, seed = left - share, seed + 1
    seconds = time.perf_counter() - begun
    for name, number in sorted(totals.items()):
        print(f"{number:10} {name}")
    print(f"{wanted} {what} in {seconds:.1f} s, {1000 * seconds / max(1, wanted):.1f} ms each")
    return 0
