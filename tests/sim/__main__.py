"""Command line of the simulator: `python -m tests.sim --seed 7 [--trace]`, `--seeds 200`.

`--scenario healing` runs clusters that heal themselves (`tests.sim.healing`).
Exit code 1 if any seed fails, with the seed and how to run it again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.sim.attempt import BUGS, RUNS, attempt
from tests.sim.run import Outcome


def main() -> int:
    options = _parse()
    if options.seed is not None:
        return _run_one(options, is_traced=options.trace)
    return _run_many(range(options.first, options.first + options.seeds), options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="print every event of that seed")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds (default 20)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default 0)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes at once (default: one per core)",
    )
    parser.add_argument(
        "--scenario", choices=sorted(RUNS), default="faults", help="what is run (default faults)"
    )
    parser.add_argument("--bug", help="plant this bug of the scenario first")
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at a failure")
    options = parser.parse_args()
    known = sorted(BUGS[options.scenario])
    if options.bug is not None and options.bug not in known:
        parser.error(f"the bugs of {options.scenario} are {', '.join(known)}")
    return options


def _run_one(options: argparse.Namespace, *, is_traced: bool) -> int:
    begun, seed = time.perf_counter(), options.seed
    run_seed = RUNS[options.scenario]
    try:
        outcome = run_seed(seed, bug=options.bug, trace_file=sys.stdout if is_traced else None)
    except Exception:  # noqa: BLE001 - whatever it is, it is what this seed found
        traceback.print_exc()
        print(f"seed {seed} FAILED")
        return 1
    for what, number in outcome.counts.items():
        print(f"{number:8} {what}")
    print(
        f"seed {seed} ok: {outcome.events} events, {outcome.virtual_s:.1f} virtual s, "
        f"{time.perf_counter() - begun:.1f} s, trace {outcome.trace_hash}"
    )
    return 0


def _results(seeds: range, options: argparse.Namespace) -> Iterator[tuple[int, Outcome | str]]:
    """Outcomes as they come; only a few seeds wait at once."""
    if options.jobs == 1:
        for seed in seeds:
            yield seed, attempt(options.scenario, seed, options.bug, options.twice)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=50) as pool:
        running: dict[Future[Outcome | str], int] = {}
        remaining = list(seeds)
        try:
            while remaining or running:
                while remaining and len(running) < 2 * options.jobs:
                    seed = remaining.pop(0)
                    given = options.scenario, seed, options.bug, options.twice
                    running[pool.submit(attempt, *given)] = seed
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run_many(seeds: range, options: argparse.Namespace) -> int:
    begun = time.perf_counter()
    failed: dict[int, str] = {}
    totals: dict[str, int] = {}
    finished, virtual_s = 0, 0.0
    for seed, outcome in _results(seeds, options):
        finished += 1
        if isinstance(outcome, str):
            failed[seed] = outcome
            print(f"\nseed {seed} FAILED: {outcome}\nagain: {_command(seed, options)}")
            if not options.keep_going:
                break
        else:
            virtual_s += outcome.virtual_s
            for what, number in outcome.counts.items():
                totals[what] = totals.get(what, 0) + number
        _show_progress(f"{finished}/{len(seeds)} seeds, {len(failed)} failed")
    print()
    for what, number in sorted(totals.items()):
        print(f"{number:10} {what}")
    seconds = time.perf_counter() - begun
    print(f"{finished} seeds, {virtual_s:.0f} virtual s in {seconds:.0f} s, failed: {len(failed)}")
    for seed in sorted(failed):
        print(f"again: {_command(seed, options)}")
    return 1 if failed else 0


def _command(seed: int, options: argparse.Namespace) -> str:
    scenario = "" if options.scenario == "faults" else f" --scenario {options.scenario}"
    bug = f" --bug {options.bug}" if options.bug else ""
    return f"python -m tests.sim{scenario} --seed {seed}{bug}"


def _show_progress(text: str) -> None:
    if sys.stdout.isatty():
        print(f"\r{text}", end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
