"""What others published: their tables as data, in the columns of `dsnb.load_runs`, and whether their figures agree.

`tables` loads them, `consistency` recomputes every published figure from the others and says where they contradict
each other. `README.md` names the source of each table.
"""

from dsnb.runs.literature.consistency import agreement, contradictions
from dsnb.runs.literature.tables import published, schedule

__all__ = ["agreement", "contradictions", "published", "schedule"]
