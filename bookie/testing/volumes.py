"""The disks of a simulated machine, each of which can be slow, full or failing by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(slots=True)
class DiskOptions:
    """How a disk behaves; may be changed while it runs. Latencies are uniform up to `_max_s`,
    times `slow_factor`."""

    read_max_s: float = 0.001
    write_max_s: float = 0.0005
    sync_max_s: float = 0.005
    slow_factor: float = 1.0
    cached_read_probability: float = 0.8
    capacity_bytes: int = 1 << 40
    read_error_probability: float = 0.0
    write_error_probability: float = 0.0
    sync_error_probability: float = 0.0


class Volumes:
    """File systems by where they are mounted; at first there is one."""

    def __init__(self, options: DiskOptions) -> None:
        self.options: dict[str, DiskOptions] = {"": options}
        """The one at "" holds all paths that are on no other."""

    def separate(self, directories: Sequence[str]) -> None:
        """Makes each of them a file system of its own, with its own options."""
        self.options |= {directory: replace(self.options[""]) for directory in directories}

    @property
    def with_files(self) -> list[str]:
        """The volumes in which a bookie has its directories."""
        return list(self.options)[1:] or [""]

    def of(self, path: str) -> str:
        """Returns the volume that holds `path`."""
        if len(self.options) == 1:
            return ""
        found = [one for one in self.options if one and f"{path}/".startswith(f"{one}/")]
        return max(found, key=len, default="")

    def at(self, path: str) -> DiskOptions:
        return self.options[self.of(path)]

    def number_of(self, path: str) -> int:
        """Returns the number of the device, from 1."""
        return 1 + list(self.options).index(self.of(path))
