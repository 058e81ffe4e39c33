"""What a run that is `ok` leaves beside its settings and its result, for fakes that train nothing."""

from dsnb.base.files import json_files


def leave(run, timed_steps):
    """Write the machine and the given number of timed steps into a run's folder."""
    json_files.write_json(run.environment, {"host": "h", "gpus": []})
    rows = [
        {"step": number, "phase": "timed", "step_time_s": 1.0}
        for number in range(1, timed_steps + 1)
    ]
    json_files.write_lines(run.steps, rows)
