"""Reading streams. Never fences a writer, and never shows a record that is not confirmed.

- backward.py: reads a stream from its end towards its beginning
- lag.py: how far a position is behind the end
- merge_options.py: options of a merged reader, checked
- merged_feeds.py: the streams that a merged reader reads, one task each
- merged_reader.py: several streams as one, in the order of time
- reader.py: reads one stream in order and follows its end
- seek.py: turns a start into a position
- selected_streams.py: the streams that names and patterns select
- segment_feed.py: batches of a stream, segment by segment
- shared_tail.py: reads the end of a stream once for all readers of a client
"""
