"""Demonstrations from scripted experts: made by a plan, kept in one file."""

from rlvla3.demonstrations.collecting import Plan, collect, differing
from rlvla3.demonstrations.dataset import Dataset, load, save

__all__ = ["Dataset", "Plan", "collect", "differing", "load", "save"]
