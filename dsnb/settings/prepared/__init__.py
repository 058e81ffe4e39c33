"""The folder that `dsnb prepare` fills and all nodes see: its content, and what a run reads from it."""
