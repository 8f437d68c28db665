"""`bookie.testing` under the name of the distribution: for tests of an application."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.testing import *
else:
    sys.modules[__name__] = import_module("bookie.testing")
