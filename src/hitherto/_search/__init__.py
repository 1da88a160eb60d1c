"""Full-text search.

`query` reads the language of questions, `search` feeds the text index and asks it, and `snippets` cuts out the part of
a text that matched. The index of a sealed store is made of `segments`: `sealed_index` has it in memory, and
`sealed_index_store` keeps it, encrypted, in the store itself. `timeline` lists new messages by time.
"""
