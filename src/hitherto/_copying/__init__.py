"""Copying a store into another one.

`workspace_copy` copies one workspace row by row, whatever the two backends are, and goes on where an interrupted copy
stopped. `row_pages` reads all rows of a conversation a page at a time. `hitherto.copying` copies a whole store with it.
"""
