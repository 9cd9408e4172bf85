"""The daemon: the one place that knows all the rooms, and closes the loop."""
