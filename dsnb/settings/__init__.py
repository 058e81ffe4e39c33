"""The settings of a run, their defaults and former names, and the rules for them."""
