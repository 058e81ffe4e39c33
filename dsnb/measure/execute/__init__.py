"""Executes a notebook through papermill, in a separate kernel."""
