"""Encryption.

`codec` is the protocol between rows and their content, with the codec of plain stores; `sealed` is the codec that
encrypts. Every cryptographic primitive is in `primitives`. `rotation` gives a workspace another key, `reencryption`
does it for one conversation, and `quarantine` lists the records that fail their integrity check.
"""
