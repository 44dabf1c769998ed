"""Measurements of this installation against known bounds."""
