"""The command line: arguments in, one job out, one line for every error.

What: `main` (parser and dispatch), a module per command, `summary` (the table at the end).
Why: the only room that prints.
Stays out: everything that is not about arguments or printing.
"""
