"""A plain script without async, which uses the same streams through `stream.blocking`.

    python -m examples.blocking_script CLUSTER

Works in notebooks and threads as well; Ctrl-C cancels a call that waits.
"""

from __future__ import annotations

import sys
import time

from ledgerstream.blocking import FromEnd, Namespace

RECORDS = 10_000


def main(cluster: str) -> None:
    with Namespace.connect(cluster, "examples", create=True) as namespace:
        with namespace.writer("measurements", create=True) as writer:
            begun_s = time.perf_counter()
            # One call, one hop to the loop in the background, a few batches to the bookies.
            first, last = writer.append_many([b"%d" % number for number in range(RECORDS)])
            took_s = time.perf_counter() - begun_s
            print(f"appended {first} to {last}, durable after {took_s * 1000:.0f} ms")

            tickets = [writer.append_nowait(b"late %d" % number) for number in range(3)]
            print("and", *[ticket.wait() for ticket in tickets])

        with namespace.reader("measurements", start=FromEnd(RECORDS + 3)) as reader:
            total = sum(len(batch) for batch in reader.read_to_end())
        print(f"read {total} records in batches")

        with namespace.reader("measurements", start=FromEnd(3)) as reader:
            for record in reader:  # would wait for more at the end
                print(record.sequence, record.value.decode())
                if record.value == b"late 2":
                    break


if __name__ == "__main__":
    main(sys.argv[1])
