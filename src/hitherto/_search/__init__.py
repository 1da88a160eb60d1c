"""Full-text search.

Queries, snippets, feeding the index, and the sealed index that is kept in the store itself.
"""
