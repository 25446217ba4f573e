"""What came before DCP: producers of TAP and of the two drafts of UPR."""
