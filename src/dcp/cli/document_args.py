"""Arguments for documents: their schema, and a condition on them."""

from __future__ import annotations

import click

from dcp.columns.document_schema import ddl, document_type
from dcp.columns.selection import parse_condition
from dcp.errors import UsageError


def document_options(schema: str | None, where: str | None) -> dict[str, str]:
    """Return the options that are set. Errors name the flag."""
    options: dict[str, str] = {}
    try:
        if schema is not None:
            options["schema"] = ddl(document_type(schema))
        if where is not None:
            parse_condition(where)
            options["where"] = where
    except UsageError as error:
        # The client calls the schema `document`.
        flag, _, problem = str(error).partition(": ")
        raise click.UsageError(f"--{'schema' if flag == 'document' else flag}: {problem}") from None
    return options
