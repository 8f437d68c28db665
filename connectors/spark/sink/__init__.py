"""The exactly-once sink.

sink.py has the writers that Spark calls. In a task, task_writer.py encodes rows, task_results.py
holds them while they are few, and task_ledgers.py sends them; arrow_input.py converts columns,
arrow_write.py encodes entries, and routing.py chooses streams and partitions. On the driver,
schema_check.py checks the schema, result_ledgers.py writes small results, by ledger_output.py,
batch_commit.py commits the ledgers of a batch, and sort_merge.py sorts them by sort_order.py.
"""
