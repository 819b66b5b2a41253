"""From traffic to operations, and what must come of them: plan, regions, expectation."""
