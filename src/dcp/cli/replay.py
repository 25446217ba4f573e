"""`dcp replay`: replays a recorded server to real clients."""

from __future__ import annotations

import socketserver
from typing import BinaryIO

import click

from dcp._codec import Splitter
from dcp.cli.arguments import LocalFile
from dcp.cli.recording import Playback, server_bytes
from dcp.cli.terminal import counted
from dcp.errors import FrameError
from dcp.wire.memcached import MAX_FRAME

_CHUNK = 1 << 16


@click.command()
@click.argument("file", type=LocalFile("rb"))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free one]")
@click.option("--raw", is_flag=True, help="Send all recorded bytes at once, without waiting for requests.")
def replay(file: BinaryIO, host: str, port: int, raw: bool) -> None:
    """Replay a recorded server to every client that connects.

    FILE is a transcript (JSON with a member server_hex), a pcap or pcapng capture, the server's raw bytes, or hex text.
    Each request gets the next recorded answer to its opcode, with the request's opaque, and the frames that followed
    that answer. A cluster map is sent as it was recorded, with the addresses that the nodes had then. The command
    runs until Ctrl-C.

    A client has to send the requests of the recorded one, in any order. A recorded SCRAM login fails with every other
    client, since its proof is of that login only.

    \b
    Example:
      dcp replay capture.pcapng --port 11210
    """
    recorded = server_bytes(file.read())
    answers = len(Playback(recorded))
    if not answers and not raw:
        raise click.ClickException(f"{file.name}: no answer of a server in {len(recorded)} bytes")
    try:
        listening = ReplayServer((host, port), recorded, raw=raw)
    except OSError as error:
        raise click.ClickException(f"{host}:{port}: cannot listen: {error.strerror}") from None
    with listening as server:
        address = "{}:{}".format(*server.server_address)
        click.echo(f"{counted(answers, 'answer')}, {counted(len(recorded), 'byte')} on {address}")
        server.serve_forever()


class ReplayServer(socketserver.ThreadingTCPServer):
    """A TCP server that plays the recording from its beginning on each connection."""

    # A restart must not wait for old connections to time out, and Ctrl-C must not wait for clients.
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], recorded: bytes, *, raw: bool) -> None:
        self.recorded, self.raw = recorded, raw
        super().__init__(address, _ReplayConnection)


class _ReplayConnection(socketserver.BaseRequestHandler):
    """One connection of a client."""

    server: ReplayServer

    def handle(self) -> None:
        """Answer the client until it closes the connection."""
        try:
            if self.server.raw:
                self.request.sendall(self.server.recorded)
            self._answer()
        except (OSError, FrameError):
            # The connection broke, or the client sent bytes that are no frame.
            return

    def _answer(self) -> None:
        playback, splitter = Playback(self.server.recorded), Splitter(MAX_FRAME)
        while data := self.request.recv(_CHUNK):
            splitter.feed(data)
            for request in splitter:
                if not self.server.raw:
                    self.request.sendall(b"".join(playback.answer(request)))
