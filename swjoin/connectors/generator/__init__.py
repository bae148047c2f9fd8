"""The generator: streams of the b-model, made while they are read."""
