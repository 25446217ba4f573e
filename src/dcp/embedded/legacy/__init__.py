"""Predecessors of DCP: TAP, and the two drafts of UPR."""
