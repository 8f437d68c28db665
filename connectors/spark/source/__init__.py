"""The source of batches and of micro-batches.

batch_reader.py and stream_reader.py have the readers that Spark calls. On the driver, discovery.py
finds the streams, stream_index.py finds offsets in them, end_tracker.py tracks their ends,
micro_batches.py decides what a micro-batch reads, admission.py applies its limits,
planning_cache.py knows ledgers and bookies, and data_loss.py reports deleted records. In a task,
input_partitions.py reads entries and arrow_read.py builds Arrow batches. merged_segments.py finds
segments that were merged in the meantime.
"""
