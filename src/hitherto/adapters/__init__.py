"""Adapters: hitherto as the place where an agent framework keeps its conversations.

Each module is for one framework, is imported by its own name, and has the one class that the framework takes:

    from hitherto.adapters.openai_agents import Session

They stand on the public names of this library alone. What a framework keeps beside messages goes into items, in the
same commit; what people and models said goes into messages, so that lists, search and exports show it.
"""
