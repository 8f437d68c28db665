"""Appending: the writer of a stream, its batches and its segments.

writer.py: StreamWriter, the public interface of all others.
accumulator.py: gathers records into batches, and throttles callers while too much is pending.
batch.py: a batch of records, and the ticket of one record.
batch_sender.py: sends batches to the open segment, and confirms them in order.
throttle.py: the quota of bytes per second.
conditional.py: records that are taken only if they get the expected sequence.
producer.py: idempotent producers.
receipt.py: which bookies fsynced a record.
segment_lifecycle.py: when segments are rolled, prepared and sealed, and streams handed over.
segment_owner.py: how segments are taken over, published and repaired.
open_segment.py: the segment that is sent to, the writer's options and its statistics.
handover.py: asks the writer of a stream to hand it over.
policy_watch.py: one watch of policy and requests for all writers of a namespace.
"""
