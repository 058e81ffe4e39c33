"""Replays the allocations of training steps in a model of torch's caching allocator, without a GPU."""
