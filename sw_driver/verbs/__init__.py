"""The driver's objects. They have the names of verbs where verbs has them."""
