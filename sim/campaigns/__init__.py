"""Long work: random traffic, shuffled captures, mutation, measurements."""
