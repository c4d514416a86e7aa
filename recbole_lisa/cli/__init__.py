"""The commands, one file each; `main` reads the command line."""
