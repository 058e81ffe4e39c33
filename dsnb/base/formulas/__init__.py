"""Formulas with their sources: throughput, FLOPs, memory, cost, model shapes. Of dsnb they use only its errors."""
