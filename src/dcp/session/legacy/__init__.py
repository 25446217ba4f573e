"""Sessions of the dialects before DCP: TAP and the two UPR drafts."""
