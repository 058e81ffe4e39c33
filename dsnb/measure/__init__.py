"""Runs: launched, trained, swept, executed as notebooks."""
