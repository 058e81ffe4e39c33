"""A params file -> runs, executed one by one, in parallel or as Slurm jobs; an interrupted sweep is resumed."""
