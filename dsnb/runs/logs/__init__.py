"""Readers of other programs' logs: text -> training runs, each with its settings, figures and steps.

`console` recognizes a log and passes the lines that `text` selects to the readers of `launchers`, `deepspeed`,
`megatron` and `trainer`. `step_csv` and `trainer.read_state` read files other than console logs; `logged_run` has the
result and its columns in `dsnb.load_runs`. What a log does not contain stays missing. Each figure is marked as
logged or derived.
"""
