"""The command `kbatch`: its commands, their options, and what they print."""
