"""Ground floor: batches, identifiers, hashing, units, errors, what a join means, row and key codecs, durable files.

Every room uses this one. Stays out: anything that decides, reads streams, or knows a configuration.
"""
