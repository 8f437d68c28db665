"""Options of clients that give up on a bookie soon."""

from __future__ import annotations

from ledger.options import ClientOptions

IMPATIENT = ClientOptions(add_timeout_s=0.5, read_timeout_s=0.5, ensemble_change_timeout_s=1.0)
