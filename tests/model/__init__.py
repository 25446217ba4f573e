"""An independent cluster of DCP producers: written from the protocol's description, with nothing of `src/dcp`.

The embedded cluster and the client share layouts and readings of the protocol, so that an error in both of them is
invisible when they meet. This model packs its own bytes and decides by itself what a server may send.
"""
