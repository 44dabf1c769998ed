"""The scheduling engine: pure decisions. Standard library and ``messages`` only; no clock, no
I/O, no tensors. See ``engine.Engine``."""
