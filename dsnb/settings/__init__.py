"""The settings of a run, and the rules for them."""
