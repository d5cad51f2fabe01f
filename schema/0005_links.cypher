CREATE NODE TABLE IF NOT EXISTS Elsewhere (
    key   STRING,
    store STRING,
    id    STRING,
    PRIMARY KEY (key)
);

CREATE REL TABLE IF NOT EXISTS LINKS_TO (
    FROM Entity TO Elsewhere,
    relation_type STRING,
    weight        DOUBLE,
    attributes    STRING,
    version       INT64,
    sequence      INT64,
    ordinal       INT64,
    created_by    STRING,
    valid_from    TIMESTAMP,
    valid_to      TIMESTAMP,
    confidence    DOUBLE,
    context       STRING
);
