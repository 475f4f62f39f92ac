"""Reporting to people and observers: logs, problems, and escaping of untrusted text."""
