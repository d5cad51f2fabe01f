CREATE NODE TABLE IF NOT EXISTS StoreCommit (
    id       INT64,
    sequence INT64,
    time     INT64,
    digest   STRING,
    nodes    INT64,
    edges    INT64,
    PRIMARY KEY (id)
);

CREATE (:StoreCommit {id: 0, sequence: 0, time: 0, digest: '00000000000000000000000000000000', nodes: 0, edges: 0});
