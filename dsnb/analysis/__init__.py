"""Tables of runs -> medians, trade-offs, scaling, memory against theory, slow nodes. Returns data, draws nothing."""
