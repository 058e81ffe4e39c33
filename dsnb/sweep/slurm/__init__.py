"""Runs as Slurm jobs.

`client` calls Slurm's commands; `allocation` is what a job may use; `jobs` submits one job per run, `one_allocation`
one job per sweep; `submissions` records jobs, so that a later call finds them; `outcome` maps Slurm's states to
statuses of runs.
"""
