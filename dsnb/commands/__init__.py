"""What the command line does behind its options: the larger commands, and how tables are printed."""
