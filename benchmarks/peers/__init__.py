"""Other systems on the same files; `run` starts them all."""
