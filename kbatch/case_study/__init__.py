"""The cats-vs-dogs case study: its models, its data, and the driver of the command."""
