CREATE NODE TABLE IF NOT EXISTS StoreCommit (
    sequence INT64,
    time     INT64,
    digest   STRING,
    nodes    INT64,
    edges    INT64,
    PRIMARY KEY (sequence)
);
