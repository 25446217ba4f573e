"""Handlers of the commands that a node answers, one module for each topic."""
