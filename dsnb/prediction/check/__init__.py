"""Is a measured speed normal? The expected range, where measured runs lie, and the largest gaps with their sizes.

`claims` is what somebody states or a run shows, `setup` completes its settings and predicts its
time with changes, `gaps` asks for each cause what the step would take without it or with it,
`accounting` compares an MFU with the rate it belongs to, and `verdict` says it in about ten lines.
"""
