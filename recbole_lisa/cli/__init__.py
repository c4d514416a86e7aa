"""The commands, one file each: `main(arguments)` returns the exit status; a mistake of the user raises UsageError."""
