"""Published tables in the columns of `dsnb.load_runs`, and checks of whether their figures agree."""

from dsnb.results.literature.tables import agreement, contradictions, published

__all__ = ["agreement", "contradictions", "published"]
