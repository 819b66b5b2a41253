"""Lower layer protocols: packet buffer and walkers that find DDP segments."""
