"""Tables of runs and of steps -> medians, differences, decisions and their sentences. Returns data, draws nothing."""
