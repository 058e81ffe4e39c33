"""Run folders as both halves see them: files, fields, table columns, and when a run counts as finished."""
