CREATE NODE TABLE IF NOT EXISTS Entity (
    id         STRING,
    type       STRING,
    content    STRING,
    attributes STRING,
    version    INT64,
    sequence   INT64,
    created_at TIMESTAMP,
    updated_at TIMESTAMP,
    PRIMARY KEY (id)
);

CREATE REL TABLE IF NOT EXISTS RELATES_TO (
    FROM Entity TO Entity,
    relation_type STRING,
    weight        DOUBLE,
    attributes    STRING,
    version       INT64,
    sequence      INT64
);
