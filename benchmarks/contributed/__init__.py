"""Runs that others contributed (`dsnb contribute`): one folder each, validated, and compared with predictions."""
