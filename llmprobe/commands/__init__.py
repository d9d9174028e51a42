"""The commands: each parses, calls one library function, saves and prints."""
