"""A REST catalog on a local socket: the operations that PyIceberg's client asks for, answered by an SQL catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table

TOKEN = "s3cret-token"


class _Handler(BaseHTTPRequestHandler):
    catalog: SqlCatalog
    lock = threading.Lock()

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}" and not self.path.endswith("/oauth/tokens"):
            return self._send(401, _error("NotAuthorizedException", "wrong token"))
        try:
            with self.lock:
                found = self._perform(self.path.partition("?")[0].split("/")[2:], body)
        except NoSuchTableError as error:
            return self._send(404, _error("NoSuchTableException", str(error)))
        except NamespaceAlreadyExistsError as error:
            return self._send(409, _error("AlreadyExistsException", str(error)))
        except CommitFailedException as error:
            return self._send(409, _error("CommitFailedException", str(error)))
        return self._send(200, found)

    do_GET = do_POST = do_HEAD = _answer

    def _perform(self, path: list[str], body: bytes) -> Any:
        match self.command, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                asked = json.loads(body)
                self.catalog.create_namespace(tuple(asked["namespace"]))
                return {"namespace": asked["namespace"], "properties": {}}
            case "POST", ["namespaces", namespace, "tables"]:
                asked = json.loads(body)
                schema = Schema.model_validate(asked["schema"])
                name = f"{namespace}.{asked['name']}"
                return _table(self.catalog.create_table(name, schema, properties=asked.get("properties", {})))
            case "GET", ["namespaces", namespace, "tables", table]:
                return _table(self.catalog.load_table(f"{namespace}.{table}"))
            case "POST", ["namespaces", namespace, "tables", table]:
                commit = CommitTableRequest.model_validate_json(body)
                before = self.catalog.load_table(f"{namespace}.{table}")
                done = self.catalog.commit_table(before, commit.requirements, commit.updates)
                return _table(done)
        raise NoSuchTableError(f"{self.command} {self.path}")

    def _send(self, status: int, found: Any) -> None:
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _table(table: Table | CommitTableResponse) -> Any:
    return {"metadata-location": table.metadata_location, "metadata": json.loads(table.metadata.model_dump_json())}


def _error(kind: str, message: str) -> Any:
    return {"error": {"message": message, "type": kind, "code": 0}}


@contextmanager
def rest_catalog(catalog: SqlCatalog) -> Iterator[str]:
    """Serve a catalog. Yield the URL."""
    handler = type("Handler", (_Handler,), {"catalog": catalog})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
