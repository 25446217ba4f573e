"""A cluster in memory that speaks the protocol on real sockets."""

from dcp.embedded.cluster import Cluster, StoredDocument
from dcp.embedded.users import Privilege, User

__all__ = ["Cluster", "Privilege", "StoredDocument", "User"]
