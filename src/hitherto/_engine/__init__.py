"""How a store works.

Committing, reading and writing conversations, packing and compressing them, recovery, quotas and checks. `store` and
`conversation` check arguments and delegate to these modules.
"""
