"""What a run leaves to read: reports, timelines, pages, plots."""
