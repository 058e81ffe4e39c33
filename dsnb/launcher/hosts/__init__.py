"""A run on other machines.

`remote` is the coordinator of a run: it starts an `agent` on every host (`transport` says how), talks to each through
a `node` in the language of `wire`, and lets `gather` write down what they send. The agent starts the ranks with the
same code that starts them on this machine.
"""
