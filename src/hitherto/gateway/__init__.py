"""The gateway: a local address that programs talk to in place of their provider.

A request goes through `app` (who may come in, and where it leads) and `passing` (there and back). `sending` and
`connecting` have the connections to the providers, `copying` has the bytes of both sides, read and given to a recorder.
`upstreams` says which path leads to which provider, `child` prepares the program of `hitherto run`, and `server` runs
it all. `replaying` answers from a kept conversation in place of a provider. Nothing here is imported before a command
needs it.
"""
