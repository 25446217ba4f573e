"""`dcp replay`: a server that says what another one said."""

from __future__ import annotations

import socketserver
from typing import BinaryIO

import click

from dcp._codec import Splitter
from dcp.cli.recording import Replay, server_bytes
from dcp.cli.terminal import counted
from dcp.errors import FrameError
from dcp.wire.memcached import MAX_FRAME

_CHUNK = 1 << 16


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Default: any that is free.")
@click.option("--raw", is_flag=True, help="Send everything at once, whatever the client says.")
def replay(file: BinaryIO, host: str, port: int, raw: bool) -> None:
    """Serve what a server said in FILE to every client that connects. Ctrl-C ends it.

    FILE is a transcript (JSON with a member server_hex), a pcap or pcapng capture, raw bytes of the server, or hex.
    Each request gets the next recorded answer to its opcode, with its own opaque, and what followed that answer.
    A cluster map is sent as it was recorded, with the addresses of then.

    \b
    Example:
      dcp replay capture.pcapng --port 11210
    """
    recorded = server_bytes(file.read())
    answers = len(Replay(recorded))
    if not answers and not raw:
        raise click.ClickException(f"{file.name}: no answer of a server in {len(recorded)} bytes")
    try:
        listening = Server((host, port), recorded, raw=raw)
    except OSError as error:
        raise click.ClickException(f"{host}:{port}: cannot listen there: {error.strerror}") from None
    with listening as server:
        where = "{}:{}".format(*server.server_address[:2])
        click.echo(f"{counted(answers, 'answer')}, {counted(len(recorded), 'byte')} on {where}")
        server.serve_forever()


class Server(socketserver.ThreadingTCPServer):
    """Each connection gets the recording from its beginning."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], recorded: bytes, *, raw: bool) -> None:
        self.recorded, self.raw = recorded, raw
        super().__init__(address, _Talk)


class _Talk(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        try:
            if self.server.raw:
                self.request.sendall(self.server.recorded)
            self._answer()
        except (OSError, FrameError):
            # The client is gone, or says what no frame is.
            return

    def _answer(self) -> None:
        recording, splitter = Replay(self.server.recorded), Splitter(MAX_FRAME)
        while data := self.request.recv(_CHUNK):
            splitter.feed(data)
            for request in splitter:
                if not self.server.raw:
                    self.request.sendall(b"".join(recording.answer(request)))
