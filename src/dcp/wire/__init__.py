"""Wire format of the four dialects: tables of messages, and pure functions that read and write frames."""

from dcp.wire.dcp import DCP
from dcp.wire.layout import Dialect
from dcp.wire.tap import TAP
from dcp.wire.upr1 import UPR1
from dcp.wire.upr2 import UPR2

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (TAP, UPR1, UPR2, DCP)}
