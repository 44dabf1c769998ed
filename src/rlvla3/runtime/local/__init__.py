"""The local runtime: one process for each member of one machine."""
