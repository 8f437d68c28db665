"""The metadata store on ZooKeeper, by kazoo.

- `address`: the `zk://` form of a cluster address.
- `access`: as whom a session acts, and the ACL of the nodes that it makes.
- `ephemerals`: finds out whether an ephemeral create whose response was lost has happened.
- `errors`: translates ZooKeeper's errors.
- `session`: one session: connecting, calls in flight, closing.
- `store`: `ZooKeeperStore`, the driver.
- `threads`: kazoo's one thread, and the way from it to trio.
- `transactions`: transactions that create missing parents.
- `watches`: watches that outlive connections and sessions.
"""
