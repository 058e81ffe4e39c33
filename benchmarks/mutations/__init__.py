"""Do the tests notice? `python -m benchmarks.mutations [MODULE...]`.

A mutation changes what the code means: a unit, a direction, an order, a division. Each is declared
in a TOML file of this folder, named after its room of `dsnb/`:

* `holds`: what the code does right, in words;
* `file`, `old`, `new`: a text that occurs once in the file, and what replaces it;
* `tests`: the test files or folders (or `FILE::TEST`) that should notice.

The command makes one mutation at a time in a copy of the tree, runs these tests there until one
fails, and prints what it tried: `noticed`, or `SURVIVED` if all tests passed. A MODULE selects
mutations: a room or the path of a file, such as `results`, `show/explorer` or
`dsnb/base/formulas/metrics.py`. It takes about ten seconds a mutation and core; developers run it
after they have changed what a room computes, `make test` does not.

mutmut 3 and Cosmic Ray mutate syntax, a number or an operator at a time: Cosmic Ray 8.7 finds 2,211
mutations in the four modules of `dsnb/base/formulas` alone, and no survivor says what it means for
a user. Both change Python only (mutmut 3 only functions), not the tables in
TOML or the explorer's JavaScript, and Cosmic Ray imports torch anew for each.
"""
