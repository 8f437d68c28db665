"""Kafka: three brokers that are controllers too, three replicas, each record flushed at once.

The client is that of Confluent, which is written in C: `linger.ms` 0, `acks` all.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fixed_rate import OUTSTANDING_MAX, PATIENCE, STAMP
from benchmarks.systems import drivers, programs
from benchmarks.systems.system import Running, free_ports, is_listening, servers

ABOUT = "Kafka {version}: 3 copies, each synced, acknowledged by all"
_BROKERS = 3
_CLUSTER_ID = "bGVkZ2Vyc3RyZWFtYmVuYw"
_CONFIG = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{control}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}
log.flush.interval.messages=1
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
"""


def missing() -> str:
    return programs.missing("kafka")


@contextmanager
def running(directory: Path) -> Iterator[Running]:
    ports = free_ports(2 * _BROKERS)
    brokers, controllers = ports[:_BROKERS], ports[_BROKERS:]
    voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers))
    with servers(directory) as started:
        for number, (port, control) in enumerate(zip(brokers, controllers, strict=True)):
            config = directory / f"kafka-{number}.properties"
            text = _CONFIG.format(
                number=number, port=port, control=control, voters=voters,
                directory=directory / f"kafka-{number}",
            )  # fmt: skip
            config.write_text(text)
            format_it = ["kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(config)]
            started.run(f"kafka-{number}", programs.java("kafka", *format_it))
            started.start(f"kafka-{number}", programs.java("kafka", "kafka.Kafka", str(config)), {})
        started.wait_ready("Kafka", lambda: all(map(is_listening, brokers)))
        address = ",".join(f"127.0.0.1:{port}" for port in brokers)
        yield Running(address, drivers.module_client("kafka", address), started.pids)


def _append(address: str, topics: Sequence[str]) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(name, 1, _BROKERS) for name in topics]).values():
        made.result(60)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    latencies_ms = array("d")
    drivers.say("ready")
    for order in map(str.split, sys.stdin):
        if order == drivers.REPORT:
            drivers.say_latencies(latencies_ms)
            continue
        stream, rate, count, size = order
        padding = os.urandom(max(0, int(size) - STAMP.size))
        latencies_ms = _at_fixed_rate(producer, stream, padding, int(count), int(rate))
        drivers.say(f"done {len(latencies_ms)}")


def _at_fixed_rate(
    producer: Any, topic: str, padding: bytes, count: int, rate: int
) -> array[float]:
    """Does what fixed_rate.at_fixed_rate does, with callbacks."""
    latencies_ms = array("d")

    def delivered(due_s: float, error: object, _: object) -> None:
        if error is not None:
            raise RuntimeError(f"Kafka refused a record: {error}")
        latencies_ms.append((time.perf_counter() - due_s) * 1e3)

    started_s = time.perf_counter()
    end_s = started_s + max(1.0, PATIENCE * count / rate)
    sent = 0
    while sent < count and (now_s := time.perf_counter()) < end_s:
        due = min(count, int((now_s - started_s) * rate) + 1, len(latencies_ms) + OUTSTANDING_MAX)
        for number in range(sent, due):
            on_delivery = partial(delivered, started_s + number / rate)
            value = STAMP.pack(time.monotonic()) + padding
            producer.produce(topic, value, on_delivery=on_delivery)
        sent = max(sent, due)
        producer.poll(max(0.0, started_s + sent / rate - time.perf_counter()))
    producer.flush()
    return latencies_ms


def _follow(address: str, topic: str) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    latencies_ms = array("d")
    drivers.say("ready")
    for order in map(str.split, sys.stdin):
        if order == drivers.REPORT:
            drivers.say_latencies(latencies_ms)
            continue
        count, latencies_ms = int(order[0]), array("d")
        while len(latencies_ms) < count:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                raise RuntimeError(f"Kafka does not deliver: {message.error()}")
            stamp_s: float = STAMP.unpack_from(message.value())[0]
            latencies_ms.append((time.monotonic() - stamp_s) * 1e3)
        drivers.say(f"done {count}")


if __name__ == "__main__":
    sys.path.append(str(programs.PYTHON))
    if sys.argv[1] == "append":
        _append(sys.argv[2], sys.argv[3:])
    else:
        _follow(sys.argv[2], sys.argv[3])
