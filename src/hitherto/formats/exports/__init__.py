"""Formats for people and for training, which are only written: Markdown, a page of HTML, ShareGPT and ChatML.

What they share stands here, too: a conversation as sections of text, the HTML of a message, which the viewer also uses,
the records for training, and the redaction of what leaves.
"""
