"""The master: intake, mini-buffers, distribution epochs, slots, moves, checkpoints."""
