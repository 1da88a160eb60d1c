"""Removing data for good.

`purging` destroys conversations. `sweep` purges what retention says is due, and `schedule` decides when. `maintenance`
packs and tidies in a thread of its own; it is here because that thread also sweeps and scrubs. `shutdown` closes a
store, which finishes purges whose bytes are still in the files. `checkpoint_copies` deletes the
copies that lie in checkpoint stores.
"""
