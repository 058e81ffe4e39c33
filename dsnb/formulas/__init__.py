"""Formulas with their sources: throughput, FLOPs, memory, cost, model shapes. They use no other part of dsnb."""
