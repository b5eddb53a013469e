"""The command line: one file for the commands of a kind, and what they run.

Modules with work to do are imported when their command is run.
"""
