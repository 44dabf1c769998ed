"""Fully asynchronous reinforcement learning of vision-language-action policies."""
