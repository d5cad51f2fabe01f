"""HTTP API definition: the table of operations, from which routes, roles, OpenAPI and the clients come."""
