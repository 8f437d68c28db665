"""Where bookies are: the table that an operator keeps, one node of JSON.

An entry there overrides the location that a bookie publishes itself. Choices of bookies use a copy
of up to LOCATIONS_TRUSTED_S seconds. A table that is damaged is never overwritten, and stops
nobody from choosing: the last one that was read is kept.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final

import trio

from ledger.core.bounded_json import parse_json
from ledger.core.placement.topology import DEFAULT_LOCATION, Location, Place, host_of
from ledger.errors import (
    InvalidArgument,
    MetadataConflict,
    MetadataCorrupt,
    NodeExists,
    NoSuchNode,
)
from ledger.metastore.base import MetadataStore
from ledger.metastore.paths import NODE_BYTES_MAX, check_bookie_id

log = logging.getLogger(__name__)

PATH: Final = "/ledgerstream/locations"
LOCATION_PROPERTY: Final = "location"
"""Property of a bookie's registration: where the bookie is by its own settings."""
LOCATIONS_TRUSTED_S: Final = 60.0
_TRIES_MAX = 100


class BookieLocations:
    """The table of locations in one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: Mapping[str, Location] = {}
        self._known_until = -math.inf

    async def read(self) -> dict[str, Location]:
        """Returns the table, by bookie. Raises MetadataCorrupt, MetadataUnavailable."""
        try:
            return _decode((await self._store.get(PATH)).data)
        except NoSuchNode:
            return {}

    async def place(self, bookie: str, location: Location) -> None:
        """Records where a bookie is. Raises InvalidArgument, MetadataCorrupt, MetadataConflict,
        MetadataUnavailable."""
        check_bookie_id(bookie)
        await self._update(lambda table: {**table, bookie: location})

    async def remove(self, bookie: str) -> bool:
        """Removes a bookie's entry; returns whether there was one. Raises what `place` raises."""
        was_there = False

        def removed(table: dict[str, Location]) -> dict[str, Location]:
            nonlocal was_there
            was_there = bookie in table
            return {one: location for one, location in table.items() if one != bookie}

        await self._update(removed)
        return was_there

    async def rename(self, old: str, new: str) -> None:
        """Gives the entry of a bookie to its new id, unless that has one. Raises what `place`
        raises."""
        check_bookie_id(new)

        def changed(table: dict[str, Location]) -> dict[str, Location]:
            kept = {one: location for one, location in table.items() if one != old}
            return {new: table[old], **kept} if old in table else kept

        await self._update(changed)

    async def known(self) -> Mapping[str, Location]:
        """Returns a table at most LOCATIONS_TRUSTED_S seconds old, the same object until it
        changes. Raises MetadataUnavailable."""
        if trio.current_time() >= self._known_until:
            try:
                table = await self.read()
            except MetadataCorrupt as error:
                log.warning("locations_ignored path=%s error=%r", PATH, str(error))
            else:
                self._known = table if table != self._known else self._known
            self._known_until = trio.current_time() + LOCATIONS_TRUSTED_S
        return self._known

    async def _update(self, change: Callable[[dict[str, Location]], dict[str, Location]]) -> None:
        self._known_until = -math.inf
        for _ in range(_TRIES_MAX):
            try:
                node = await self._store.get(PATH)
            except NoSuchNode:
                wanted = change({})
                if not wanted:
                    return
                try:
                    await self._store.create(PATH, _encode(wanted))
                except NodeExists:
                    continue
                return
            present = _decode(node.data)
            wanted = change(present)
            if wanted == present:
                return
            try:
                await self._store.put(PATH, _encode(wanted), node.version)
            except (MetadataConflict, NoSuchNode):
                continue
            return
        raise MetadataConflict(f"{PATH}: others changed it first {_TRIES_MAX} times")


def place_of(
    bookie: str, host: str, properties: Mapping[str, str], table: Mapping[str, Location]
) -> Place:
    """Returns the place of a registered bookie, from the table, else from its registration.

    A published location that is not legal counts as none.
    """
    location = table.get(bookie)
    if location is None:
        try:
            location = Location.parse(properties.get(LOCATION_PROPERTY, DEFAULT_LOCATION.path))
        except InvalidArgument as error:
            log.warning("location_ignored bookie=%s error=%r", bookie, str(error))
            location = DEFAULT_LOCATION
    return Place(host, location)


def places_of_table(table: Mapping[str, Location]) -> dict[str, Place]:
    """Returns the places of bookies that may be down; their hosts are in their ids."""
    return {bookie: Place(host_of(bookie), location) for bookie, location in table.items()}


def _encode(table: Mapping[str, Location]) -> bytes:
    paths = {bookie: table[bookie].path for bookie in sorted(table)}
    data = json.dumps({"version": 1, "locations": paths}, separators=(",", ":")).encode()
    if len(data) > NODE_BYTES_MAX:
        raise InvalidArgument(
            f"{PATH} would have {len(table)} locations in {len(data)} bytes, at most"
            f" {NODE_BYTES_MAX}. Cure: remove those of bookies that are gone, or set `location`"
            " in the settings of bookies"
        )
    return data


def _decode(data: bytes) -> dict[str, Location]:
    try:
        document = parse_json(data)
        if document["version"] != 1:
            raise ValueError(f"version {document['version']}; this release reads version 1")
        locations = document["locations"]
        return {check_bookie_id(one): Location.parse(locations[one]) for one in locations}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MetadataCorrupt(f"{PATH} cannot be read: {error}") from error
