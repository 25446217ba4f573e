"""Clients of others, from the registries, unchanged: they read exactly what an embedded cluster has."""
