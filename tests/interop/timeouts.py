"""How long the suite's programs wait for each other: no test is about these times.

A machine that does much else must not turn one result into another: a request that is late is no
failed bookie, a process that gets no turn is not gone. So whatever waits waits longer than any
busy machine takes, and what must end is ended (see `znodes.forget_registration`). Tests that are
about a time have one of their own.
"""

from __future__ import annotations

PATIENCE_S = 300.0
"""For what other tasks and processes do; when it is over the test has failed."""

REQUEST_TIMEOUT_S = 90
"""For the answer of a bookie that runs. One that was killed closes its connections at once."""

CONNECT_TIMEOUT_S = 60
"""For a connection. At the port of a bookie that was killed it is refused at once."""

SESSION_TIMEOUT_MS = 60_000
"""Of ZooKeeper's sessions, as long as our servers grant it: a bookie that is busy stays
registered, and so does one that was killed, until it is started again or forgotten."""
