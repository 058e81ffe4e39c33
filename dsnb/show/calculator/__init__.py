"""The calculator: recommendations for known models on known GPUs, computed beforehand and looked up in one page."""
