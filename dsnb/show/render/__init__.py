"""Tables, figures and answers about runs, as HTML and as text. `__all__` lists the modules for notebooks."""

__all__ = ["answer", "by_task", "comparison", "nodes", "plots", "run_card", "tables"]
