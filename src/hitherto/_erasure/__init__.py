"""Removing data for good.

`purging` destroys conversations. `sweep` purges what retention says is due, and `schedule` decides when. `maintenance`
packs and tidies in a thread of its own. `shutdown` closes a store, and finishes purges whose bytes are still in the
files. `checkpoint_copies` deletes the copies that lie in checkpoint stores.
"""
