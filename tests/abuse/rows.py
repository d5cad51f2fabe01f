"""Abuse list: required results for invalid input and failures, by number.

In every row no acknowledged write is lost, no unacknowledged write is partly applied, and the process keeps answering.
Refusals are problem documents with a stable type. Tests declare the rows that they cover with ``pytest.mark.abuse``.
"""

from __future__ import annotations

_ROWS = {
    "Transport and browser": """
        1 Origin of another site → 403
        2 Origin null → 403
        3 Host of another site → 421
        4 no Host → 400
        5 JSON sent as text/plain → 415
        6 cross-site preflight → 403, no CORS header
        7 Content-Length over the limit → 413, body unread
        8 chunked over the limit → 413, closed
        9 gzip body → 415, never decoded
        10 two Content-Lengths, or one with Transfer-Encoding → 400
        11 100 kB of headers → 431
        12 70 kB URL → 414
        13 header drip → closed within 10 s
        14 body drip → 408 within 30 s
        15 more connections than allowed → 503
        16 more event streams per key than allowed → 429, a closed one frees its place
        17 slow event reader → bounded queue, a drop marker, then close
        18 rate exceeded → 429 with Retry-After
    """,
    "Permissions": """
        19 no key → 401 with WWW-Authenticate
        20 unknown, revoked, expired key → the same 401, compared in constant time
        21 read key writes → 403, unchanged
        22 key of store A asks for B → 404
        23 listing stores shows only one's own
        24 key in the query string → 401, never logged
        25 only hash and prefix of a key are kept, file mode 0600
        26 a foreign MCP session id → 404
        27 a non-loopback address without keys → refuses to start
        28 metrics and schema from elsewhere without a key → 401
    """,
    "Names and paths": """
        29 ../x, %2e%2e, %2f in a store name → 400/404, nothing created
        30 demo%0a → 400
        31 NUL, right-to-left marks, homoglyphs → 400
        32 over 64 characters → 400
        33 CON, .hidden, names that differ only in case → 400/409
        34 a symlink in the data folder → refused and logged
    """,
    "JSON": """
        35 depth 50,000 → 400
        36 invalid UTF-8 → 400
        37 NaN, 1e400 → 400
        38 an integer outside INT64 → 400 naming the field
        39 duplicate keys → 400 with their place
        40 unknown field → 400 naming it
        41 one node over the batch limit → 400, nothing written
        42 a bad line in an NDJSON import → reported by number, the rest is in
        43 ids and relation types with odd characters → stored exactly, or 400
        44 a 10 MB content → stored or 413, never a crash
        45 an edge with a missing endpoint → skipped and reported
        46 the same node twice in one batch → last wins, one row
    """,
    "Cypher": """
        47 files and other databases, however disguised → 403, no file read or written
        48 the words inside a string or a back-ticked name → 200
        49 CALL that changes a setting → 403
        50 BEGIN, COMMIT, ROLLBACK, CHECKPOINT → 403
        51 a write in read mode → 403, unchanged
        52 two statements → 400, never executed
        53 3,000 parentheses, 5,000 brackets → 400 within 50 ms
        54 10,000 + → 400
        55 range(1, 1e8), literal or parameter → 400 or 507, process alive
        56 a cross product → 408 within the timeout + 1 s, connection usable again
        57 the client goes away mid-query → interrupted within 1 s
        58 more rows than allowed → 200 with truncated: true
        59 parameter 2**70 → 400
        60 unknown parameter → 400
        61 unterminated string or comment → 400
        62 ten timeouts, then an ordinary query → 200
        63 DROP or ALTER of a table that kgserve owns → 403
    """,
    "MCP": """
        64 unknown tool → -32602
        65 bad arguments → isError with the path
        66 an exception in a tool → internal error in both protocol revisions, no internals
        67 header and body disagree → 400
        68 unsupported version → 400
        69 one session too many → 503
        70 dropping a store without confirm → isError, unchanged
    """,
    "Life cycle": """
        71 SIGTERM in mid-write with an event stream open → exits in time, data whole
        72 kill -9 in mid-inject, 50 times → batches whole, sidecars agree
        73 a second server on the same folder → exit 1, naming the holder's pid
        74 disk full → 507, reads go on, writes again when there is room
        75 ten editors start the bridge at once → exactly one server
        76 a corrupted or deleted sidecar file → rebuilt, never a crash
        77 more stores than may be open → least recently used closed, none lost
    """,
}


def _read() -> dict[str, dict[int, str]]:
    lines = {part: (line.split(maxsplit=1) for line in text.strip().splitlines()) for part, text in _ROWS.items()}
    return {part: {int(number): words for number, words in rows} for part, rows in lines.items()}


PARTS: dict[str, dict[int, str]] = _read()
"""Text of each row by number, by part of the list."""
NUMBERS: frozenset[int] = frozenset(number for rows in PARTS.values() for number in rows)
