"""What is done to tuples, behind one protocol: the window join, its steps, unmatched rows, the movement of its state.

Stays out: messages between ranks.
"""
