"""Simulator adapters; `registry.simulator_class` finds one by name."""
