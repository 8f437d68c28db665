"""A candidate of ours in a process that a test may kill.

`python -m tests.interop.candidate URI ID` prints "elected" when it is the auditor, and "over" when
it is the auditor no longer.
"""

from __future__ import annotations

import random
import sys

import trio

from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.election import AuditorElection
from tests.interop.timeouts import SESSION_TIMEOUT_MS


async def stand(uri: str, bookie_id: str) -> None:
    async with open_store(uri, session_timeout_ms=SESSION_TIMEOUT_MS) as store:
        root = ClusterAddress.parse(uri).root
        election = AuditorElection(store, root, random.Random())
        while True:
            async with election.elected(bookie_id) as term:
                print("elected", flush=True)
                await term.wait_over()
            print("over", flush=True)


if __name__ == "__main__":
    trio.run(stand, sys.argv[1], sys.argv[2])
