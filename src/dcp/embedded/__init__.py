"""A cluster in memory that speaks the protocol on real sockets.

`Cluster` starts one. Its faults are in `FAULTS`, described by `describe_faults()`. Everything that a method refuses
raises `dcp.UsageError`, which is also available here.
"""

from dcp.embedded.certificate import Authority, Certificate
from dcp.embedded.cluster import Cluster, ClusterCredentials, DocumentVersion, StoredDocument
from dcp.embedded.faults import FAULTS, FaultHandle, describe_faults
from dcp.embedded.server import Traffic
from dcp.embedded.users import Privilege, User
from dcp.errors import UsageError

__all__ = [
    "FAULTS",
    "Authority",
    "Certificate",
    "Cluster",
    "ClusterCredentials",
    "DocumentVersion",
    "FaultHandle",
    "Privilege",
    "StoredDocument",
    "Traffic",
    "UsageError",
    "User",
    "describe_faults",
]
