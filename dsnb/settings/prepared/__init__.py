"""The folder that `dsnb prepare` fills and all nodes see: what is in it, and what a run takes from there."""
