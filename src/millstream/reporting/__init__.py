"""What is told to people and observers: logs, problems, and text made harmless."""
