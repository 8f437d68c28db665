"""`stream.blocking` under the name of the distribution: for threads, without an event loop."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream.blocking import *
else:
    sys.modules[__name__] = import_module("stream.blocking")
