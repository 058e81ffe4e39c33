"""Reads what other programs logged: text -> starts of a training, each with its settings, figures and steps.

`console` goes through the lines of a log that `lines` finds worth a look, and asks the programs' modules what they say:
`launchers`, `flags`, `deepspeed`, `topology`, `chat`, `megatron`, `iterations`, `trainer` and others.
`step_csv` and `trainer_state` read files that are no console logs; `find` recognises files by what is in them; `rows`
turns a run into the columns of `dsnb.load_runs`.

What a log does not say stays missing; each number is either as logged or derived, and says which.
"""
