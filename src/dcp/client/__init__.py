"""A client of a cluster: the only room that talks to the network."""
