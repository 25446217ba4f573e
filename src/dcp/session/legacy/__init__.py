"""Sessions in the dialects before DCP: both drafts of UPR, and TAP."""
