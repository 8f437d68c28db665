"""The half of stream.aio and stream.blocking in the trio thread, which both share.

appends.py: records that callers of other threads append, in order.
writing.py: writers of streams and of partitioned streams, on top of it.
prefetch.py: a buffer of items that are fetched ahead of a consumer in another thread.
reading.py: readers of streams, and of several streams merged, behind such buffers.
"""
