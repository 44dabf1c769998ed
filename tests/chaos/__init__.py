"""Faults of every kind in a run that must go on: ``python -m chaos.soak`` with ``tests/`` importable."""
