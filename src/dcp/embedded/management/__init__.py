"""The management service of a node: cluster maps, nodes and collections over HTTP."""
