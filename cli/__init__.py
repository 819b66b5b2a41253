"""The ``rnic`` commands."""
