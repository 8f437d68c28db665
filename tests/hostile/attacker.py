"""A process that attacks one bookie: `python -m tests.hostile.attacker`, with a line of JSON on
stdin. It prints what it has done as a line of JSON, every second."""

from __future__ import annotations

import json
import random
import sys

import trio

from tests.hostile.attacks import FRAMES, HTTP, TLS, Attacker, Target
from tests.hostile.tally import Tally

_TASKS = {FRAMES: 6, TLS: 4, HTTP: 8}
"""Connections of each kind at a time, but for those that are held."""


async def attack(target: Target, wanted: dict[str, int], seed: int) -> None:
    """Attacks until the bookie has looked at as many requests of each kind as are `wanted`."""
    tally = Tally()
    attacker = Attacker(target, random.Random(seed), tally)

    async def repeat(kind: str) -> None:
        while tally.looked_at[kind] < wanted[kind]:
            await attacker.attack(kind)

    async def report() -> None:
        while True:
            await trio.sleep(1)
            show(tally)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        async with trio.open_nursery() as attacking:
            for kind in wanted:
                for _ in range(_TASKS[kind]):
                    attacking.start_soon(repeat, kind)
        nursery.cancel_scope.cancel()
    show(tally)


def show(tally: Tally) -> None:
    sys.stdout.write(json.dumps(tally.document()) + "\n")
    sys.stdout.flush()


def main() -> None:
    given = json.loads(sys.stdin.readline())
    target = given["target"]
    target["ledgers"] = tuple(target["ledgers"])
    trio.run(attack, Target(**target), given["wanted"], given["seed"])


if __name__ == "__main__":
    main()
