"""Reports about a run: texts, timelines, pages, plots."""
