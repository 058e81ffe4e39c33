"""Run folders, other programs' logs and published tables -> one table of runs and one of steps."""
