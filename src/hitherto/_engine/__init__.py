"""How a store works.

`context` has the parts of an opened store, and `engine` the verbs for its rows and messages. `committer` commits for
all threads, `state` prepares writes to a conversation, `workspace` keeps the workspace's own row. The other modules are
the operations: creating, saving, deleting, packing, recovery, quotas, checks. `store` and `conversation` check
arguments and delegate to them; no module here knows these two. docs/architecture.md shows the way of an append.
"""
