"""The trio thread's half of stream.aio and stream.blocking: what both faces share."""
