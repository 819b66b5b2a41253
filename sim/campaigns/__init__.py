"""Long campaigns: random traffic, shuffled captures, mutation, measurements."""
