"""Every setting, in one table. The only module that reads the environment.

A setting ``max_open_stores`` is the environment variable ``KGSERVE_MAX_OPEN_STORES``; a command-line option wins over
the environment, the environment over the default given here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from kgserve.errors import FieldError, InvalidInput
from kgserve.platform.codecs import convert, place_of

ENVIRONMENT_PREFIX = "KGSERVE_"
MEBIBYTE = 1 << 20
EngineName: TypeAlias = Literal["kuzu", "ladybug"]


def _as_path(_kind: type, text: str) -> Path:
    return Path(text)


def _doc(text: str, **bounds: Any) -> msgspec.Meta:
    return msgspec.Meta(description=text, **bounds)


Dedup: TypeAlias = Literal["off", "exact", "guarded", "similarity"]
Consolidation: TypeAlias = Literal["safe", "full", "suggest", "off"]
Pruning: TypeAlias = Literal["archive", "delete", "off"]
Reinforcing: TypeAlias = Literal["restore", "add"]
ReinforcementNumber = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""The amount, as `reinforcement` was given before it named a formula. Stores that are older have it on disk."""
Indexed: TypeAlias = Literal["none", "words", "words+meaning"]

HalfLife = Annotated[
    Annotated[float, msgspec.Meta(gt=0, le=36_500)] | None,
    _doc("Days after which half of a memory's confidence is left; null: it stays"),
]
Reinforcement = Annotated[
    Reinforcing | ReinforcementNumber,
    _doc(
        "What an access does before it adds `reinforcement_amount`: restore the stored confidence, or keep what is "
        "left; a number sets the amount"
    ),
]
ReinforcementAmount = Annotated[float, _doc("Confidence that an access adds, at most up to 1", ge=0, le=1)]
MinConfidence = Annotated[float, _doc("Recall leaves out what has less confidence left", ge=0, le=1)]
DedupPolicy = Annotated[
    Dedup,
    _doc(
        "What a new memory is merged into: nothing; the same text; the same words, numbers and negations; or whatever "
        "is near"
    ),
]
DedupThreshold = Annotated[float, _doc("Cosine above which `similarity` merges a new memory", ge=0, le=1)]
ConsolidationPolicy = Annotated[
    Consolidation,
    _doc("What is merged by itself: what a new memory would have been, all that is near, nothing but suggestions, off"),
]
ConsolidationThreshold = Annotated[float, _doc("Cosine above which memories are near", ge=0, le=1)]
ConsolidationGuard = Annotated[
    bool, _doc("Consolidation keeps apart memories that differ in numbers, names, negations or opposites")
]
ConsolidationInterval = Annotated[int, _doc("New memories after which they are consolidated", ge=1, le=1_000_000)]
ConsolidationHours = Annotated[float, _doc("Hours after which new memories are consolidated", gt=0, le=876_000)]
PrunePolicy = Annotated[Pruning, _doc("What becomes of memories that have faded: withdrawn, deleted, or nothing")]
PruneThreshold = Annotated[float, _doc("Confidence below which a memory has faded", ge=0, le=1)]
PruneHours = Annotated[float, _doc("Hours after which faded memories are looked for", gt=0, le=876_000)]
Alpha = Annotated[float, _doc("Weight of words against meaning in recall", ge=0, le=1)]
MinSimilarity = Annotated[float, _doc("Cosine that recall by meaning alone asks for", ge=-1, le=1)]
MinRelevance = Annotated[
    float, _doc("Cosine below which hybrid recall drops a memory that shares no word with the query", ge=-1, le=1)
]
DefaultLimit = Annotated[int, _doc("Memories that recall answers with", ge=1, le=100)]
Extract = Annotated[
    bool, _doc("Have a language model, where one is set, take facts, entities and relations out of new memories")
]

_KEY_DESCRIPTION = (
    "Key that commands and clients send to a server that asks for one; give it as variable, not as option"
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one process. Sizes are in MiB and times in seconds unless the name says otherwise."""

    data_dir: Annotated[Path, _doc("Folder that holds the stores")] = Path("kgserve-data")
    host: Annotated[str, _doc("Address to listen on")] = "127.0.0.1"
    port: Annotated[int, _doc("Port to listen on; 0 takes a free one", ge=0, le=65535)] = 8080
    insecure_no_auth: Annotated[
        bool, _doc("Serve on an address that others reach though there is no key to ask them for")
    ] = False
    key: Annotated[str, _doc(_KEY_DESCRIPTION, pattern=r"^[!-~]*\Z")] = ""
    tools: Annotated[
        str,
        _doc(
            "What the editors' bridge has the server list: names of tools, and the sets `default` (`memory` and "
            "`graph`), `time`, `entity-memory`, `memory-server`, `all`"
        ),
    ] = "default"
    answers: Annotated[
        Literal["both", "text"], _doc("How the editors' bridge has tools answer: as text and JSON, or as text alone")
    ] = "both"
    call_timeout: Annotated[
        float, _doc("Time that the editors' bridge waits for a tool; five times as long where much may be to do", gt=0)
    ] = 60.0
    explorer: Annotated[bool, _doc("Show the explorer, a page for people, at `/`")] = True
    cluster: Annotated[
        str,
        _doc(
            "Addresses of the NATS servers that keep the journals of a cluster, separated by commas, such as "
            "nats://user:password@host:4222; left out: this machine alone keeps them"
        ),
    ] = ""
    node_name: Annotated[
        str,
        _doc("Name of this node in its cluster; by default that of the machine", pattern=r"^[A-Za-z0-9_-]{0,64}\Z"),
    ] = ""
    advertise_url: Annotated[
        str, _doc("Address at which clients and other nodes reach this node; by default the one it listens on")
    ] = ""
    cluster_copies: Annotated[
        int, _doc("Other nodes of the cluster that keep a store's files up to date, for taking it over", ge=0, le=16)
    ] = 1
    idle_exit: Annotated[
        float,
        _doc("Time without use after which the server ends; 0: never, but a day if a bridge has started it", ge=0),
    ] = 0.0
    log_format: Annotated[Literal["json", "console"], _doc("Shape of log lines on standard error")] = "console"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _doc("Least severe log line shown")] = "info"
    engine: Annotated[EngineName, _doc("Database engine behind the stores; ladybug has to be installed")] = "kuzu"
    max_open_stores: Annotated[int, _doc("Stores kept open; the least recently used idle one closes", ge=1)] = 64
    buffer_pool_mb: Annotated[int, _doc("Upper bound of the engine's page cache, per store", ge=64)] = 512
    engine_memory_mb: Annotated[
        int,
        _doc("What the process of an engine may take, page cache included; a statement that wants more fails", ge=512),
    ] = 1024
    engine_processes: Annotated[
        int, _doc("Stores that have an engine's process at once; the one that nobody asked for longest gives way", ge=1)
    ] = 16
    engine_threads: Annotated[int, _doc("Threads that one query may use", ge=1, le=64)] = 2
    read_connections: Annotated[int, _doc("Concurrent reads per store", ge=1, le=64)] = 4
    query_timeout: Annotated[float, _doc("Time limit of one read", gt=0)] = 10.0
    write_queue: Annotated[int, _doc("Writes that may wait per store before 503", ge=1)] = 256
    max_body_mb: Annotated[int, _doc("Largest request body, imports excepted", ge=1)] = 32
    max_nodes: Annotated[int, _doc("Most nodes in one inject", ge=1)] = 10_000
    max_edges: Annotated[int, _doc("Most edges in one inject", ge=1)] = 50_000
    journal_segment_mb: Annotated[int, _doc("Size at which a journal segment is closed", ge=1)] = 64
    journal_retention_mb: Annotated[int, _doc("Journal kept from before the older snapshot, per store", ge=0)] = 256
    compact_wal_mb: Annotated[
        int, _doc("Growth of journal or engine log that triggers a compaction once idle", ge=1)
    ] = 64
    check_interval: Annotated[float, _doc("Time between background checks of a store; 0 turns them off", ge=0)] = 3600.0
    indexes: Annotated[
        Indexed,
        _doc(
            "What is indexed of stores that have no setting `indexes` of their own; with none there is no search, in "
            "no store"
        ),
    ] = "words+meaning"
    history: Annotated[bool, _doc("Keep every state that nodes and edges have had, to read stores as they were")] = True
    history_mb: Annotated[
        int, _doc("Most that the history of a store may take; beyond it, the oldest states go. 0: no bound", ge=0)
    ] = 8192
    backup_dir: Annotated[
        Path | None, _doc("Folder below which callers may back up and restore; without it none may")
    ] = None
    models_dir: Annotated[Path | None, _doc("Folder of embedding models; by default models in the data folder")] = None
    embedding_provider: Annotated[
        Literal["local", "openai", "hashing"],
        _doc("Where vectors come from: a local model, a service that speaks OpenAI's format, or words alone"),
    ] = "local"
    embedding_model: Annotated[str, _doc("Name of the embedding model")] = "sentence-transformers/all-MiniLM-L6-v2"
    embedding_url: Annotated[str, _doc("Base URL of the embedding service, such as http://host/v1")] = ""
    embedding_key: Annotated[str, _doc("Key for the embedding service; give it as variable, not as option")] = ""
    embedding_threads: Annotated[int, _doc("Threads that the local model uses", ge=1, le=64)] = 2
    embedding_batch: Annotated[int, _doc("Texts embedded at once", ge=1, le=256)] = 16
    llm_url: Annotated[
        str,
        _doc(
            "Base URL of a service that speaks OpenAI's chat format, such as http://host/v1; a language model is asked "
            "only where this and `llm_model` are set"
        ),
    ] = ""
    llm_model: Annotated[str, _doc("Name of the language model")] = ""
    llm_key: Annotated[str, _doc("Key for the language model's service", pattern=r"^[!-~]*\Z")] = ""
    llm_timeout: Annotated[float, _doc("Time that one question to the language model may take", gt=0, le=600)] = 60.0
    llm_daily_tokens: Annotated[
        int,
        _doc("Tokens that one store may spend in a day (UTC), by the larger of count and estimate; 0: no limit", ge=0),
    ] = 200_000
    webhook_url: Annotated[
        str,
        _doc(
            "Address that changes of contents are posted to, signed, so that an index elsewhere can follow; it asks "
            "for `webhook_secret`"
        ),
    ] = ""
    webhook_secret: Annotated[str, _doc("What posts to it are signed with", pattern=r"^[!-~]*\Z")] = ""
    webhook_batch: Annotated[int, _doc("Changes in one post at most, and about 1 MiB", ge=1, le=10_000)] = 100
    webhook_timeout: Annotated[float, _doc("Time that one post may take", gt=0, le=600)] = 10.0
    syncers: Annotated[
        str,
        _doc("Installed syncers that are told of contents, by name, separated by commas: `kgserve.vector_syncers`"),
    ] = ""
    event_queue: Annotated[int, _doc("Events that may wait for one listener before some are dropped", ge=1)] = 1000
    event_heartbeat: Annotated[float, _doc("Time between signs of life on a silent event stream", gt=0)] = 15.0
    max_event_streams: Annotated[int, _doc("Event streams open at once", ge=1)] = 64
    max_event_streams_per_key: Annotated[
        int, _doc("Event streams open at once for one key, or for one address that gives none", ge=1)
    ] = 32
    max_threads_per_key: Annotated[
        int,
        _doc(
            "Threads that one key, or one address that gives none, may have at once for reads, and as many for "
            "writes, of 16 each",
            ge=1,
            le=16,
        ),
    ] = 8
    max_requests_per_key: Annotated[
        int, _doc("Requests of the same that may have such a thread or wait for one; one more is refused", ge=1)
    ] = 256
    max_waits_per_key: Annotated[
        int, _doc("Requests of the same that may wait for an index to see a commit; one more is refused", ge=1)
    ] = 32
    max_transfers_per_key: Annotated[
        int, _doc("Imports and exports of the same that may be open; one more is refused", ge=1)
    ] = 8
    max_connections: Annotated[int, _doc("Connections open at once; one more is answered with 503", ge=1)] = 512
    max_connections_per_address: Annotated[
        int, _doc("The same for one client address; trusted proxies may take all", ge=1)
    ] = 256
    max_header_kb: Annotated[int, _doc("Largest head of a request, in kB", ge=1, le=1024)] = 64
    max_url_kb: Annotated[int, _doc("Longest address in a request, in kB", ge=1, le=1024)] = 32
    head_timeout: Annotated[float, _doc("Time that a request's head, or a TLS handshake, may take", gt=0)] = 8.0
    body_timeout: Annotated[float, _doc("Time in which a request's body must bring another 1 kB, or its end", gt=0)] = (
        20.0
    )
    answer_timeout: Annotated[
        float, _doc("Time that a client may leave an answer unread before it is cut off", gt=0)
    ] = 300.0
    keep_alive: Annotated[float, _doc("Time that an idle connection stays open", gt=0)] = 5.0
    rate_limit: Annotated[
        float,
        _doc("Requests per second of a key, and of a remote address without; at once twice as many; 0: no limit", ge=0),
    ] = 500.0
    cors_origins: Annotated[
        str,
        _doc("Web sites whose pages may use this server: origins, separated by commas, such as https://app.example"),
    ] = ""
    allowed_hosts: Annotated[
        str, _doc("Names that requests may be for, separated by commas, besides those of this machine")
    ] = ""
    trusted_proxies: Annotated[
        str, _doc("Addresses or networks, separated by commas, whose X-Forwarded-For says who the client is")
    ] = ""
    tls_cert: Annotated[Path | None, _doc("Certificate chain as PEM: serve over TLS")] = None
    tls_key: Annotated[Path | None, _doc("The certificate's private key as PEM, without a password")] = None
    slow_ms: Annotated[int, _doc("Milliseconds from which on an operation is logged as slow; 0 logs none", ge=0)] = 1000
    otel_endpoint: Annotated[str, _doc("OTLP address that traces go to over HTTP, such as http://host:4318")] = ""
    default_store: Annotated[str, _doc("Store of requests that name none")] = "default"
    memory_half_life_days: HalfLife = 30.0
    memory_reinforcement: Reinforcement = "restore"
    memory_reinforcement_amount: ReinforcementAmount = 0.1
    memory_min_confidence: MinConfidence = 0.1
    memory_dedup: DedupPolicy = "guarded"
    memory_dedup_threshold: DedupThreshold = 0.95
    memory_consolidation: ConsolidationPolicy = "safe"
    memory_consolidation_threshold: ConsolidationThreshold = 0.85
    memory_consolidation_guard: ConsolidationGuard = True
    memory_consolidation_interval: ConsolidationInterval = 50
    memory_consolidation_hours: ConsolidationHours = 24.0
    memory_prune: PrunePolicy = "archive"
    memory_prune_threshold: PruneThreshold = 0.05
    memory_prune_hours: PruneHours = 24.0
    memory_alpha: Alpha = 0.4
    memory_min_similarity: MinSimilarity = 0.5
    memory_min_relevance: MinRelevance = 0.3
    memory_default_limit: DefaultLimit = 20
    memory_extract: Extract = False
    shutdown_grace: Annotated[float, _doc("Time that a stop may take before connections are cut", gt=0)] = 20.0


_STANDARD_VARIABLES = {"otel_endpoint": ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")}
"""Variables of other programs that a setting is taken from when it has no value of its own."""


_FORMER_VALUES = {("indexes", "true"): "words+meaning", ("indexes", "false"): "none"}
"""Values that a setting once had, and what they are called now."""


SETTINGS_FIELDS = msgspec.structs.fields(Settings)
"""All settings, in their order: looked up once, since working out their annotations takes milliseconds."""


def load(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from ``environ`` (default: the process's) with ``overrides`` on top; ``None`` values are left out.

    Raises InvalidInput naming each variable or option whose value does not fit.
    """
    given = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    errors: list[FieldError] = []
    for field in SETTINGS_FIELDS:
        override = (overrides or {}).get(field.name)
        text = override if override is not None else _variable(field.name, given)
        if text is None:
            continue
        text = _FORMER_VALUES.get((field.name, str(text).lower()), text)
        try:
            values[field.name] = convert(str(text), field.type, strict=False, dec_hook=_as_path)
        except msgspec.ValidationError as error:
            name = (
                f"--{field.name.replace('_', '-')}" if override is not None else ENVIRONMENT_PREFIX + field.name.upper()
            )
            errors.append(FieldError(name, place_of(error, field.type).message))
    if errors:
        raise InvalidInput("; ".join(f"{e.path}: {e.message}" for e in errors), tuple(errors))
    return Settings(**values)


def _variable(setting: str, given: Mapping[str, str]) -> str | None:
    names = (ENVIRONMENT_PREFIX + setting.upper(), *_STANDARD_VARIABLES.get(setting, ()))
    return next((given[name] for name in names if name in given), None)
