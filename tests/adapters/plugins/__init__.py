"""Plugins of pytest that put an adapter in the place of the class that a framework's own tests are for.

They are loaded as `plugins.NAME`, because many of those tests have a package `tests` of their own.
"""
