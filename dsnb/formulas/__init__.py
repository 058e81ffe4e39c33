"""Formulas with their sources: throughput, FLOPs, memory, cost, model shapes. No dsnb types, no files."""
