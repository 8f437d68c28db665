"""What a user sees of a query: its lag, its progress and its plan.

lag.py reads the lag from Spark's progress, progress.py shows a bar of tasks, and plan_summary.py
prints what a batch is going to read.
"""
