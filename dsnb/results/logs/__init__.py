"""Readers of other programs' logs: text -> training runs, each with its settings, figures and steps.

`console` recognizes a log and passes its lines to the readers of `launchers`, `deepspeed`, `megatron` and `trainer`,
which fill a `logged_run`. What a log does not contain stays missing; each figure is marked as logged or derived.
"""
