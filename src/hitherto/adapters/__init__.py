"""Adapters: hitherto as the place where an agent framework keeps its conversations.

Each module is for one framework, is imported by its own name, and has the one class that the framework takes:

    from hitherto.adapters.openai_agents import Session

They use the public names of `Store`, and never the engine. Code that an importer needs as well lies in `dialects` or
`formats`. Nothing imports an adapter. The words of people and models go into messages, so that lists,
search and exports show them. All else that a framework keeps goes into items, in the same commit.
"""
