"""Formats that are read and written: lines of JSON, in which nothing is lost, snapshots, and the files of the programs
that hitherto comes from (`.cpeconvo`, `.vpconv`, folders of gtb).
"""
