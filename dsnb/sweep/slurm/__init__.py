"""Runs as Slurm jobs.

`client` speaks with Slurm's commands; an `allocation` says what a job may have; `jobs` makes a job a run, `sweep` one
job a sweep; `notes` are how a later call finds them again; `outcome` turns Slurm's states into how a run ended.
"""
