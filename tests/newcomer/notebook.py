"""A session as in a notebook: cells without any `with`, in the API for threads."""

import sys

from ledgerstream import __version__
from ledgerstream.blocking import FromEnd, Namespace

# [1]
namespace = Namespace.open(sys.argv[1], "notebook", create=True)
print("ledgerstream", __version__)

# [2]
writer = namespace.open_writer("log", create=True)
for number in range(10):
    writer.append(b"record %d" % number)

# [3]
reader = namespace.open_reader("log", start=FromEnd(3))
print(next(reader).value, next(reader).value)

# [4]
writer.append(b"one more")
print([record.value for record in namespace.read_last("log", 2)])

# [5]
namespace.close()
again = Namespace.open(sys.argv[1], "notebook")
assert again.info("log").records == 11
again.close()
