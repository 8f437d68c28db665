"""Writes the faces of `stream` for asyncio and for threads from its trio classes.

generate.py writes the modules of stream/aio and stream/blocking, from what source.py reads of the
trio classes and from table.py, which holds what differs.
"""
