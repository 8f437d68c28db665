"""Writes the generated documents from the code: `make docs`.

api.py writes docs/api.md, configuration.py docs/configuration.md with the help of
apache_settings.py, metrics.py docs/metrics.md, and spark_options.py the tables in docs/spark.md.
"""
