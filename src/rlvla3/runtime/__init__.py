"""Runtimes: what drives the engine and carries its commands out."""
