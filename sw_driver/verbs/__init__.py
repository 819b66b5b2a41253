"""The driver's objects, with the names of verbs where they have one."""
