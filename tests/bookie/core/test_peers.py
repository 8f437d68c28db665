"""Which connections are accepted and ended, against a twin that counts from scratch each time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from bookie.core.peers import (
    IDLE_S,
    KNOWN_MAX,
    PROGRESS_BYTES,
    STALLED_S,
    Peer,
    PeerLimits,
    Peers,
    address_of,
)

LIMITS = PeerLimits(connections_max=8, per_peer_max=4)


def admitted(peers: Peers, address: str, now: float = 0.0) -> Peer:
    admission = peers.admit(address, now)
    assert admission.peer is not None, admission.cause
    return admission.peer


def test_a_new_connection_takes_the_place_of_the_oldest_that_sent_nothing() -> None:
    peers = Peers(LIMITS)
    silent = [admitted(peers, f"10.0.0.{number}") for number in range(6)]
    admission = peers.admit("10.0.0.9", 1.0)
    assert admission.peer is not None
    assert admission.leaves is silent[0]
    assert len(peers) == 6


def test_the_last_places_are_for_addresses_that_sent_a_valid_request_before() -> None:
    peers = Peers(LIMITS)
    for number in range(6):
        peers.prove(admitted(peers, f"10.0.0.{number}"))
    refused = peers.admit("10.0.0.9", 1.0)
    assert refused.peer is None
    assert "6 connections are open, the limit for unknown addresses is 6" in refused.cause
    assert admitted(peers, "10.0.0.1")
    assert admitted(peers, "10.0.0.2")
    assert peers.admit("10.0.0.3", 1.0).leaves is not None, "only connections without a request"
    assert len(peers) == 8


def test_one_address_cannot_have_more_than_its_share() -> None:
    peers = Peers(LIMITS)
    for _ in range(4):
        peers.prove(admitted(peers, "10.0.0.1"))
    refused = peers.admit("10.0.0.1", 1.0)
    assert refused.peer is None
    assert "connections_per_peer_max" in refused.cause
    assert admitted(peers, "10.0.0.2")


def test_an_idle_connection_gives_way_to_an_address_with_fewer() -> None:
    peers = Peers(LIMITS)
    many = [admitted(peers, "10.0.0.1") for _ in range(4)]
    others = [admitted(peers, "10.0.0.2") for _ in range(2)]
    for peer in (*many, *others):
        peers.prove(peer)
        peer.received_at = 50.0
    many[2].received_at = 10.0
    assert peers.admit("10.0.0.3", 10.0 + IDLE_S - 1).peer is None
    assert peers.admit("10.0.0.3", 10.0 + IDLE_S + 1).leaves is many[2]


def test_known_addresses_are_remembered_up_to_a_number() -> None:
    peers = Peers(LIMITS)
    for number in range(KNOWN_MAX + 1):
        peer = admitted(peers, f"a{number}")
        peers.prove(peer)
        peers.leave(peer)
    assert not peers.is_known("a0")
    assert peers.is_known("a1")
    assert peers.is_known(f"a{KNOWN_MAX}")
    assert len(peers) == peers.unproven == 0


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.1.2.3:3181", "10.1.2.3"),
        ("writer-1:c7", "writer-1"),
        ("2001:db8:1:2:3:4:5:6:40000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1:40000", "2001:db8:1:2::/64"),
        ("fe80::1%eth0:40000", "fe80::/64"),
        ("::ffff:10.1.2.3:40000", "10.1.2.3"),
        ("not:an:address:1", "not:an:address"),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address


@pytest.mark.parametrize("seed", range(20))
def test_the_limits_hold_whatever_comes(seed: int) -> None:
    rng = random.Random(seed)
    peers, now = Peers(LIMITS), 0.0
    twin: list[Peer] = []
    known: set[str] = set()
    for _ in range(400):
        now += rng.random() * 30
        choice = rng.random()
        if choice < 0.6 or not twin:
            address = f"10.0.0.{rng.randrange(6)}"
            before = Counter(peer.address for peer in twin)
            admission = peers.admit(address, now)
            if admission.leaves is not None:
                leaves = admission.leaves
                assert not leaves.is_proven or now - leaves.received_at >= IDLE_S
                twin.remove(leaves)
            if admission.peer is None:
                limit = 8 if address in known else 6
                assert before[address] >= 4 or sum(before.values()) >= limit
                assert all(peer.is_proven for peer in twin if peer.address == address)
            else:
                twin.append(admission.peer)
        elif choice < 0.8:
            peer = rng.choice(twin)
            peers.prove(peer)
            known.add(peer.address)
            peer.received_at = now
        else:
            peer = rng.choice(twin)
            twin.remove(peer)
            peers.leave(peer)
            peers.leave(peer)
        counts = Counter(peer.address for peer in twin)
        assert len(peers) == len(twin) <= 8
        assert max(counts.values(), default=0) <= 4
        assert peers.unproven == sum(not peer.is_proven for peer in twin)
        assert {address: peers.of(address) for address in counts} == counts


# ---- time


def ended(peers: Peers, now: float) -> list[Peer]:
    return [ending.peer for ending in peers.overdue(now)]


def test_a_peer_without_a_request_is_overdue_unless_the_bookie_did_not_read() -> None:
    peers = Peers(LIMITS)
    silent, unread = admitted(peers, "a"), admitted(peers, "b")
    unread.is_reading = False
    assert peers.has_watched()
    assert ended(peers, 29.0) == []
    assert ended(peers, 30.0) == [silent]


def test_a_peer_between_frames_is_never_overdue() -> None:
    peers = Peers(LIMITS)
    peer = admitted(peers, "a")
    peers.prove(peer)
    peer.received_bytes = peer.consumed_bytes = 100
    assert not peers.has_watched()
    assert ended(peers, 1e9) == []


def test_a_frame_that_stalls_is_overdue_and_one_that_advances_is_not() -> None:
    peers = Peers(LIMITS)
    slow, drops, blocked = (admitted(peers, name) for name in "abc")
    for peer in (slow, drops, blocked):
        peers.prove(peer)
        peer.consumed_bytes, peer.received_bytes = 100, 150
        peer.has_unfinished = True
    blocked.is_reading = False
    for second in range(59):
        slow.received_bytes += PROGRESS_BYTES // 30
        drops.received_bytes += 1  # a byte now and then is no progress
        assert ended(peers, float(second)) == []
    assert ended(peers, 60.0) == [drops]
    blocked.is_reading = True
    assert blocked not in ended(peers, 61.0), "the time in which it was not read does not count"
    assert blocked in ended(peers, 121.0)


# ---- memory


def test_the_frames_that_stalled_longest_are_given_up_first() -> None:
    peers = Peers(PeerLimits(connections_max=100, per_peer_max=100))
    found = []
    for number in range(6):
        peer = admitted(peers, "a")
        peer.segment_bytes, peer.has_unfinished, peer.received_at = 1000, True, float(number)
        if number != 3:
            peers.prove(peer)
        found.append(peer)
    found[0].segment_bytes = 10
    found[1].has_unfinished = False
    blocked = admitted(peers, "b")
    blocked.segment_bytes, blocked.has_unfinished, blocked.is_reading = 1000, True, False
    now = 4.0 + STALLED_S
    assert [one.peer for one in peers.largest_unfinished(100, 1500, now)] == [found[3], found[2]]
    everything = peers.largest_unfinished(100, 1 << 30, now)
    assert [one.peer for one in everything] == [found[3], found[2], found[4]]


def test_the_peers_with_most_replies_that_take_none_are_given_up_first() -> None:
    peers = Peers(LIMITS)
    small, large, taking = (admitted(peers, name) for name in "abc")
    small.reply_bytes, large.reply_bytes, taking.reply_bytes = 10, 100, 1000
    taking.replies_taken_at = 10.0
    endings = peers.slowest_takers(50, 10.0 + STALLED_S - 0.5)
    assert [ending.peer for ending in endings] == [large]
    assert "it took none of 100 bytes" in endings[0].cause
