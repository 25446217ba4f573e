"""The engine of one change stream: every vbucket, over every node, to one consumer.

| to look for | module |
|---|---|
| the lock, the supervisor thread, entry points | `follower` |
| opening streams, choosing the node | `assigner` |
| reconnecting, closing connections | `node_pool`; one connection and its thread: `node_link` |
| backoff | `backoff`; for how long refusals are repeated: `patience` |
| ends, refusals, lost connections | `transitions` |
| rollback, purged deletions | `rollback` |
| batches on their way to the consumer | `batch_queue`; `persisted_only`: `persistence` |
| the disk, before a TAP stream with an end | `disk_wait` |
| settings of the stream | `settings` |

Locks. A stream has one re-entrant lock, made by its Follower. It guards every object of this package except NodeLink,
whose session belongs to its thread. A link's thread takes the lock for each event and batch; a consumer takes it to
wait, and to acknowledge a batch. Locks of the client (map, command pool, backlog) are leaves: they may be taken under
this lock, and never the other way round. Nothing waits for a node while it holds any lock.
"""
