"""Algorithms: pure functions on tensors that check shapes first and return (value, metrics)."""
