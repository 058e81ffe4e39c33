"""A params file -> runs, executed one after the other, side by side or as Slurm jobs, and resumed."""
