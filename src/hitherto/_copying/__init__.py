"""Copying a store into another one.

`copy_store` copies a whole store: row by row, whatever the two backends are, and it goes on where an interrupted copy
stopped. `workspace_copy` copies one workspace, and `row_pages` reads all rows of a conversation a page at a time.
"""
