"""Tables that stay equal to a bucket: each transaction has rows and the checkpoint that covers them."""

from dcp.sync.engine import Sync, SyncProgress
from dcp.sync.state import TableContent
from dcp.sync.targets import open_target

__all__ = ["Sync", "SyncProgress", "TableContent", "open_target"]
