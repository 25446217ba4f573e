"""The control service: what `Cluster` can do, over HTTP, and the page that shows a running cluster."""
