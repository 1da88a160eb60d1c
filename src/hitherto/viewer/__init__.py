"""The viewer: `hitherto serve`, a local page over a store.

A request goes through `door` (who may come in, and which headers every answer has), `app` (routes), `queries` (what
the store says, as the values of `values`). The pages show these values as HTML: `lists`, `reading`, `retention_page`,
`usage`, `exporting` and `changing`, drawn with `frame`. Their JSON twins are the values themselves. `outline` knows
the tree of a conversation without its content, and `branch_map` draws it. Nothing here is imported before `serve`
runs.
"""
