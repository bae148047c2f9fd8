"""A run in virtual time over tuple counts: the model behind `swjoin simulate` and `swjoin plan`."""
