"""Timeouts of the suite's programs; no test measures these times.

A busy machine must not change a result: a late response is not a failed bookie, and a process that
is not scheduled has not ended. Therefore all timeouts are longer than a busy machine needs, and
sessions are ended explicitly (see `znodes.forget_registration`). Tests of timeouts use their own.
"""

from __future__ import annotations

PATIENCE_S = 300.0
"""For the work of other tasks and processes; the test fails when it expires."""

REQUEST_TIMEOUT_S = 90
"""For the response of a running bookie. A killed one closes its connections immediately."""

CONNECT_TIMEOUT_S = 60
"""For a connection. The port of a killed bookie refuses it immediately."""

SESSION_TIMEOUT_MS = 60_000
"""Of ZooKeeper sessions, the longest that the servers grant: a busy bookie stays registered. So
does a killed one, until it is restarted or its registration is deleted."""
