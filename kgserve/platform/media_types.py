"""Media types of requests and answers."""

from __future__ import annotations

JSON_MEDIA_TYPE = "application/json"
NDJSON_MEDIA_TYPE = "application/x-ndjson"
CSV_MEDIA_TYPE = "text/csv"
XML_MEDIA_TYPE = "application/xml"
ZIP_MEDIA_TYPE = "application/zip"
TEXT_MEDIA_TYPE = "text/plain"
EVENT_STREAM_MEDIA_TYPE = "text/event-stream"
