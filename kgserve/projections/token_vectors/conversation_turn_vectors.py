"""Token vectors of the turns of a store: which nodes need them, and when they are computed.

A text of a turn is embedded once, for its vector and for its tokens. Relations `next` that arrive later make nodes
turns whose vector exists already. They wait in a queue, and their tokens come from the most recent texts or from
another run of the model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from kgserve.embedding.cache import EmbeddingCache, embed_texts_with_cache, round_to_half_precision
from kgserve.embedding.embedder import Embedder
from kgserve.embedding.token_embeddings import FloatMatrix
from kgserve.projections.base import StoreFollowedByProjections
from kgserve.projections.token_vectors.token_vector_table import TokenRows, TokenVectorTable
from kgserve.storage.model.change_set import ChangeSet
from kgserve.storage.model.conversation_turns import NEXT_TURN_RELATION
from kgserve.storage.model.store_settings import LateInteraction
from kgserve.storage.rows.conversation_turn_lookup import find_conversation_turns_among, iterate_conversation_turn_ids
from kgserve.storage.rows.rows_snapshot import RowsSnapshot

NodeTexts = Callable[[RowsSnapshot, Sequence[str]], dict[str, str]]
"""Function that returns the texts of those of some nodes that have one."""

MAX_RECENT_TEXTS = 2_000
"""Texts whose tokens are kept in memory, about 0.5 KiB each, for relations that arrive soon after their nodes."""
WAITING_BATCH_NODES = 64
TABLE_FOLDER = "token-vectors"


class LateInteractionTokenVectors:
    """Token vectors for late interaction, of the nodes that a store's settings select: conversation turns, or all.

    One thread writes; any thread may read the table and embed texts.
    """

    def __init__(self, store: StoreFollowedByProjections, embedder: Embedder) -> None:
        self._store = store
        self._embedder = embedder
        self.folder = store.layout.views / TABLE_FOLDER
        self._lock = threading.Lock()
        self._recent: OrderedDict[str, TokenRows] = OrderedDict()
        self._waiting: dict[str, None] = {}
        self._scan_wanted = False
        self._mode: LateInteraction | None = None
        self.table: TokenVectorTable | None = None

    @property
    def waiting(self) -> int:
        """Number of nodes whose tokens are still to be computed."""
        return len(self._waiting)

    @property
    def is_behind(self) -> bool:
        """True if nodes wait for their tokens, or have to be looked for."""
        return self.table is not None and (self._scan_wanted or bool(self._waiting))

    def open(self, sequence: int) -> None:
        """Load the table, if the store has one. A table older than ``sequence``, that of the vectors, is discarded."""
        projection, mode = self._embedder.token_projection, self._store.description.late_interaction
        self._waiting, self._scan_wanted, table = {}, False, None
        if projection is None or mode == "none":
            TokenVectorTable.delete_files(self.folder)
        else:
            table = TokenVectorTable(self.folder, projection)
            if table.sequence < sequence:
                table.clear()
            self._scan_wanted = table.complete != mode
        self.table, self._mode = table, mode

    def close(self) -> None:
        """Release the table and the most recent texts, without saving."""
        self.table, self._waiting, self._scan_wanted = None, {}, False
        self._forget_recent()

    def delete_files(self) -> None:
        """Delete the table with its files."""
        self.close()
        TokenVectorTable.delete_files(self.folder)

    def clear(self) -> None:
        """Delete all tokens; nodes that are embedded from now on get new ones."""
        if self.table is not None:
            self.table.clear()
        self._waiting, self._scan_wanted = {}, False
        self._forget_recent()

    @property
    def has_changed(self) -> bool:
        """True if the table differs from its files."""
        return self.table is not None and self.table.has_changed

    @property
    def has_other_setting(self) -> bool:
        """True if the setting has changed since the table was opened."""
        return self._mode != self._store.description.late_interaction

    def save(self, sequence: int) -> None:
        """Write the table as of a commit."""
        if self.table is not None:
            self.table.save(sequence, complete="" if self.is_behind or self._mode is None else self._mode)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove nodes."""
        if self.table is not None:
            self.table.remove(ids)

    def erase(self, ids: Iterable[str]) -> None:
        """Remove every trace of nodes from memory; `save` removes them from the files."""
        self._forget_recent()
        for node_id in ids:
            self._waiting.pop(node_id, None)
        self.remove(ids)

    def follow(self, changes: Iterable[ChangeSet]) -> None:
        """Queue nodes that relations make turns and that have no tokens yet, before the changes are applied."""
        if self.table is None or self._mode != "turns":
            return
        for change in changes:
            for edge in change.edges_created:
                if edge.relation_type == NEXT_TURN_RELATION:
                    self._waiting.update((end, None) for end in edge.key[:2] if end not in self.table)

    # Embedding

    def embed(self, texts: Sequence[str], embedder: Embedder, cache: EmbeddingCache) -> FloatMatrix:
        """Return the vectors of texts; new ones leave their tokens among the most recent, if the store has turns."""
        if not self._is_in_use():
            return embed_texts_with_cache(embedder, cache, texts)
        found = cache.get_many(embedder.model_id, texts)
        self._compute([text for text, vector in zip(texts, found, strict=True) if vector is None], embedder, cache)
        return embed_texts_with_cache(embedder, cache, texts)

    def embed_nodes(self, texts: dict[str, str], cache: EmbeddingCache) -> FloatMatrix:
        """Return the vectors of the texts of nodes by id, and put the tokens of those that need them into the table."""
        if not self._is_in_use():
            return embed_texts_with_cache(self._embedder, cache, [*texts.values()])
        wanted = {node_id: texts[node_id] for node_id in self._need_tokens(texts)}
        with self._lock:
            rows = {text: self._recent[text] for text in wanted.values() if text in self._recent}
        # Held here, because other texts may displace them among the most recent.
        rows |= self._compute([text for text in wanted.values() if text not in rows], self._embedder, cache)
        vectors = self.embed([*texts.values()], self._embedder, cache)
        self._put({node_id: rows[text] for node_id, text in wanted.items() if text in rows})
        return vectors

    def embed_waiting(self, texts_of: NodeTexts, cache: EmbeddingCache) -> None:
        """Compute the tokens of the next nodes that wait. ``texts_of`` returns the texts of nodes by id."""
        if self._scan_wanted:
            self._scan()
        if some := [*islice(self._waiting, WAITING_BATCH_NODES)]:
            with self._store.reading() as rows:
                texts = texts_of(rows, some)
            self.embed_nodes(texts, cache)
            for node_id in some:
                self._waiting.pop(node_id, None)

    def _is_in_use(self) -> bool:
        if self.table is None:
            return False
        if self._mode == "all" or len(self.table):
            return True
        with self._store.reading() as rows:
            return rows.has_turns

    def _need_tokens(self, ids: Collection[str]) -> Collection[str]:
        if self._mode == "all":
            return ids
        with self._store.reading() as rows:
            found = find_conversation_turns_among(rows, ids)
        self.remove(node_id for node_id in ids if node_id not in found)
        return found

    def _compute(self, texts: Sequence[str], embedder: Embedder, cache: EmbeddingCache) -> dict[str, TokenRows]:
        """Embed texts, keep their vectors in the cache, and their tokens among the most recent; return the tokens."""
        table = self.table
        if not texts or table is None:
            return {}
        distinct = [*dict.fromkeys(texts)]
        vectors, tokens = embedder.embed_tokens(distinct)
        cache.put_many(embedder.model_id, distinct, round_to_half_precision(vectors))
        rows = dict(zip(distinct, map(table.encode, tokens), strict=True))
        with self._lock:
            self._recent.update(rows)
            while len(self._recent) > MAX_RECENT_TEXTS:
                self._recent.popitem(last=False)
        return rows

    def _put(self, rows: dict[str, TokenRows]) -> None:
        table = self.table
        if table is None:
            return
        for node_id, found in rows.items():
            table.put(node_id, found)
            self._waiting.pop(node_id, None)

    def _scan(self) -> None:
        """Look for all nodes that need tokens and have none, and remove those that need none."""
        table = self.table
        if table is None:
            return
        with self._store.reading() as rows:
            found = {node_id for some in self._all_wanted(rows) for node_id in some}
        table.remove([node_id for node_id in table.ids() if node_id not in found])
        self._waiting = dict.fromkeys(node_id for node_id in found if node_id not in table)
        self._scan_wanted = False

    def _all_wanted(self, rows: RowsSnapshot) -> Iterable[list[str]]:
        if self._mode == "turns":
            return iterate_conversation_turn_ids(rows)
        return ([row.id] for row in rows.all_nodes())

    def _forget_recent(self) -> None:
        with self._lock:
            self._recent.clear()
