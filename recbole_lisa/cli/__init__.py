"""The commands, one file each; `main` calls the one that the first argument names."""
