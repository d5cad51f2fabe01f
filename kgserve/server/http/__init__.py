"""HTTP interface: REST endpoints, server-sent events, request limits, compression and OpenAPI documents."""
