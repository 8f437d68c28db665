"""Which software a registered bookie is: one property of its registration.

Apache's bookies have properties too, but not this one. It may only be set by bookies that serve
an entry after the last add confirmed once it is durable, and not before: readers count on it.
"""

from __future__ import annotations

from typing import Final

SOFTWARE_PROPERTY: Final = "software"
OUR_SOFTWARE: Final = "ledgerstream"
