"""The device: how much memory it has, how much is used, and how busy it is."""
