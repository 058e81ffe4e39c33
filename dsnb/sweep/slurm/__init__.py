"""Runs as Slurm jobs: `allocation` says what a job may use, `client` calls Slurm's commands, `jobs` follows jobs."""
