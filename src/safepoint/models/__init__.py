"""Models: one file per provider, each by its official SDK and an extra. Knows nothing of the agent's loop."""
