"""Readers of other programs' logs: text -> training runs, each with its settings, figures and steps.

`console` passes the lines that `lines` selects to the readers of each program: `launchers`, `flags`, `deepspeed`,
`chat`, `megatron` and `trainer`. `step_csv` and `trainer_state` read files other than console logs; `find` detects the
kind of a file from its content; `rows` converts a `LoggedRun` to the columns of `dsnb.load_runs`.

What a log does not contain stays missing. Each figure is marked as logged or derived.
"""
