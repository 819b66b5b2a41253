"""From capture files and frames to the streams of each LLP."""
