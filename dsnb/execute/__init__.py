"""Executes a notebook through papermill, in a kernel of its own."""
