"""The four roles: Simulator, Generator, Trainer and the controller that drives the engine."""
