"""A candidate in a process that a test may kill.

`python -m tests.ledger.metastore.candidate URI ID TIMEOUT_MS` prints "elected" when it is the
auditor, and "over" when it is the auditor no longer.
"""

from __future__ import annotations

import random
import sys

import trio

from ledger.metastore import ClusterAddress, open_store
from ledger.metastore.election import AuditorElection


async def stand(uri: str, bookie_id: str, session_timeout_ms: int) -> None:
    async with open_store(uri, session_timeout_ms=session_timeout_ms) as store:
        election = AuditorElection(store, ClusterAddress.parse(uri).root, random.Random())
        while True:
            async with election.elected(bookie_id) as term:
                print("elected", flush=True)
                await term.wait_over()
                print("over", flush=True)


if __name__ == "__main__":
    trio.run(stand, sys.argv[1], sys.argv[2], int(sys.argv[3]))
