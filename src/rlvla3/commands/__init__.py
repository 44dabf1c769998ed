"""What each command does; ``cli`` only reads the command line."""
