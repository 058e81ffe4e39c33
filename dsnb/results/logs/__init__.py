r"""Readers of other programs' logs: text -> training runs, each with its settings, figures and steps.

`console` recognizes a log and passes its lines to the readers of `launchers`, `deepspeed`,
`megatron`, `trainer` and `step_lines`, which fill a `reading.LoggedRun`; `lines.toml` has the names
and lines that need no code, and `logged_run` turns a run into a row. What a log does not contain
stays missing; each figure is marked as logged or derived.

A package adds the logs of another program by an entry point in the group `dsnb.log_readers`, which
names a module that registers readers. `marks` says that a text with these words is a log:

>>> # pyproject.toml: [project.entry-points."dsnb.log_readers"]
>>> #                 tinytrain = "my_package.tinytrain"
>>> from dsnb.results.logs.reading import reads
>>> from dsnb.results.logs.values import NUMBER, count, number, positive
>>> @reads("tinytrain: batch ", pattern=r"batch (\d{1,9}) of (\d{1,9}) tokens, (\d{1,6}) GPUs\s", marks=True)
... def settings(run, match):
...     "`tinytrain: batch 64 of 1024 tokens, 8 GPUs`."
...     batch, length, gpus = map(count, match.groups())
...     run.set_used(global_batch_size=batch, seq_len=length, gpus=gpus)
>>> @reads("tinytrain: step ", pattern=rf"step (\d{{1,12}}) loss {NUMBER} time {NUMBER}s")
... def step(run, match):
...     "`tinytrain: step 1 loss 9.5 time 2.0s`; the first step includes compilation."
...     run.start("tinytrain")
...     run.health.read(match[2], step=int(match[1]))
...     run.add_step(int(match[1]), loss=number(match[2]), step_time_s=positive(match[3]))
>>> @reads("tinytrain: done")
... def done(run, match):
...     run.ended = True
"""
