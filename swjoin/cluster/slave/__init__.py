"""The slave: its join, its reports, and the state-mover."""
