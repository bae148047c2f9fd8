"""Operators behind one protocol: the window join with its windows, results, unmatched rows and state movement.

Stays out: messages between ranks.
"""
