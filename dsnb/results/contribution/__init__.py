"""Runs of a folder -> rows that may be contributed: checked, without names of users, hosts and paths, and packed."""
