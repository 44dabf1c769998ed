"""What follows from a configuration before anything runs: numbers, and settings that do nothing or stall."""
