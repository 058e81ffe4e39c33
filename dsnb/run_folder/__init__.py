"""What both halves know about a run folder: its files, their fields, its table columns, and when it is finished."""
