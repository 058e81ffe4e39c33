"""Runs ranks on other machines.

`remote` is the coordinator of a run: it starts an `agent` on every host (`transport` builds the command), communicates
with each through a `node` in the protocol of `wire`, and `gather` writes what they send to the run folder. The agent
starts the ranks with the same code that starts them on this machine.
"""
