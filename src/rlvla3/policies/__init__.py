"""Policies: the network families and the mathematics they share."""
