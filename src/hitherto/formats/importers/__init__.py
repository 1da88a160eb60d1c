"""The files of other programs, read: one module for each program, and what several of them share.

An importer inherits `_importer.Importer`. It recognises a file of its program by the content and turns the files into
conversations with stable ids. It never sees a store.
"""
