"""Tables, figures and answers about runs, as HTML and as text. `__all__` lists the modules for notebooks."""

__all__ = [
    "all_reduce",
    "answer",
    "by_task",
    "comparison",
    "memory_plots",
    "node_report",
    "notes",
    "parity",
    "plan_answer",
    "plots",
    "run_card",
    "scaling_plots",
    "tables",
]
