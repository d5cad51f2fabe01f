"""The methods of the clients, for those who wait and for those who await.

Written by `make docs` from `kgserve.api.table`: a change here is lost.
"""

from __future__ import annotations

import kgserve.client.asynchronous as awaited
import kgserve.client.blocking as waiting
import kgserve.client.operations as ask
import kgserve.client.streams as by_hand


class StoresMethods:
    """What is asked of all stores, or before there is one."""

    connection: waiting.Answering

    stores = waiting.asks(ask.stores)
    create = waiting.asks(by_hand.create)
    drop = waiting.asks(ask.drop)
    backup_stores = waiting.asks(ask.backup_stores)
    restore_backup = waiting.asks(ask.restore_backup)
    events = waiting.listens(by_hand.events)


class ServerMethods(StoresMethods):
    """What is asked of a server."""

    health = waiting.asks(ask.health)
    ready = waiting.asks(ask.ready)
    whoami = waiting.asks(ask.whoami)
    audit = waiting.asks(ask.audit)
    cluster = waiting.asks(ask.cluster)
    drain = waiting.asks(ask.drain)
    finish_upgrade = waiting.asks(ask.finish_upgrade)
    cypher_words = waiting.asks(ask.cypher_words)
    browser_key = waiting.asks(by_hand.browser_key)
    openapi = waiting.asks(by_hand.openapi)


class StoreMethods:
    """What is asked of one store."""

    connection: waiting.Answering

    name: str

    inject = waiting.store_asks(ask.inject)
    delete_node = waiting.store_asks(ask.delete_node)
    delete_edge = waiting.store_asks(ask.delete_edge)
    traverse = waiting.store_asks(ask.traverse)
    graph = waiting.store_asks(ask.graph)
    timeline = waiting.store_asks(ask.timeline)
    settings = waiting.store_asks(ask.settings)
    update_settings = waiting.store_asks(by_hand.update_settings)
    move = waiting.store_asks(ask.move)
    repair = waiting.store_asks(ask.repair)
    stats = waiting.store_asks(ask.stats)
    links = waiting.store_asks(ask.links)
    nodes = waiting.store_pages(by_hand.nodes)
    node = waiting.store_asks(ask.node)
    get_nodes = waiting.store_asks(ask.get_nodes)
    count = waiting.store_asks(ask.count)
    delete_nodes = waiting.store_asks(ask.delete_nodes)
    describe_schema = waiting.store_asks(ask.describe_schema)
    list_tags = waiting.store_asks(ask.list_tags)
    outgoing = waiting.store_asks(ask.outgoing)
    incoming = waiting.store_asks(ask.incoming)
    put_node = waiting.store_asks(by_hand.put_node)
    put_subgraph = waiting.store_asks(ask.put_subgraph)
    retire = waiting.store_asks(ask.retire)
    retire_edge = waiting.store_asks(ask.retire_edge)
    merge = waiting.store_asks(ask.merge)
    unmerge = waiting.store_asks(ask.unmerge)
    edge = waiting.store_asks(ask.edge)
    delete_edge_by_id = waiting.store_asks(ask.delete_edge_by_id)
    history = waiting.store_asks(ask.history)
    revert = waiting.store_asks(ask.revert)
    changes = waiting.store_asks(ask.changes)
    restore = waiting.store_asks(ask.restore)
    prune_history = waiting.store_asks(ask.prune_history)
    backup = waiting.store_asks(ask.backup)
    reindex = waiting.store_asks(ask.reindex)
    search = waiting.store_asks(ask.search)
    search_batch = waiting.store_asks(by_hand.search_batch)
    context = waiting.store_asks(ask.context)
    store_memory = waiting.store_asks(ask.store_memory)
    store_memories = waiting.store_asks(ask.store_memories)
    memories = waiting.store_asks(ask.memories)
    memory = waiting.store_asks(ask.memory)
    whole_memory = waiting.store_asks(ask.whole_memory)
    update_memory = waiting.store_asks(ask.update_memory)
    delete_memory = waiting.store_asks(ask.delete_memory)
    delete_memories = waiting.store_asks(ask.delete_memories)
    recall = waiting.store_asks(ask.recall)
    retain = waiting.store_asks(ask.retain)
    retain_batch = waiting.store_asks(ask.retain_batch)
    forget = waiting.store_asks(ask.forget)
    consolidate = waiting.store_asks(ask.consolidate)
    consolidations = waiting.store_asks(ask.consolidations)
    undo_consolidation = waiting.store_asks(ask.undo_consolidation)
    prune_memories = waiting.store_asks(ask.prune_memories)
    reflect = waiting.store_asks(ask.reflect)
    extract_memories = waiting.store_asks(ask.extract_memories)
    create_entity = waiting.store_asks(ask.create_entity)
    create_entities = waiting.store_asks(ask.create_entities)
    entities = waiting.store_asks(ask.entities)
    entity = waiting.store_asks(ask.entity)
    update_entity = waiting.store_asks(ask.update_entity)
    delete_entity = waiting.store_asks(ask.delete_entity)
    delete_entities = waiting.store_asks(ask.delete_entities)
    entity_graph = waiting.store_asks(ask.entity_graph)
    merge_entities = waiting.store_asks(ask.merge_entities)
    entity_memories = waiting.store_asks(ask.entity_memories)
    relations = waiting.store_asks(ask.relations)
    relate = waiting.store_asks(ask.relate)
    create_relations = waiting.store_asks(ask.create_relations)
    delete_relation = waiting.store_asks(ask.delete_relation)
    delete_relations = waiting.store_asks(ask.delete_relations)
    memory_stats = waiting.store_asks(ask.memory_stats)
    memory_growth = waiting.store_asks(ask.memory_growth)
    memory_types = waiting.store_asks(ask.memory_types)
    memory_tags = waiting.store_asks(ask.memory_tags)
    memory_confidence = waiting.store_asks(ask.memory_confidence)
    entity_history = waiting.store_asks(by_hand.entity_history)
    children = waiting.store_asks(by_hand.children)
    descendants = waiting.store_asks(by_hand.descendants)
    ancestors = waiting.store_asks(by_hand.ancestors)
    cypher = waiting.store_asks(by_hand.cypher)
    cypher_rows = waiting.store_streams(by_hand.cypher_rows)
    import_ = waiting.store_asks(by_hand.import_)
    export = waiting.store_streams(by_hand.export)
    events = waiting.store_listens(by_hand.store_events)


class AsyncStoresMethods:
    """What is asked of all stores, or before there is one."""

    connection: awaited.AsyncConnection

    stores = awaited.asks(ask.stores)
    create = awaited.asks(by_hand.create)
    drop = awaited.asks(ask.drop)
    backup_stores = awaited.asks(ask.backup_stores)
    restore_backup = awaited.asks(ask.restore_backup)
    events = awaited.listens(by_hand.events)


class AsyncServerMethods(AsyncStoresMethods):
    """What is asked of a server."""

    health = awaited.asks(ask.health)
    ready = awaited.asks(ask.ready)
    whoami = awaited.asks(ask.whoami)
    audit = awaited.asks(ask.audit)
    cluster = awaited.asks(ask.cluster)
    drain = awaited.asks(ask.drain)
    finish_upgrade = awaited.asks(ask.finish_upgrade)
    cypher_words = awaited.asks(ask.cypher_words)
    browser_key = awaited.asks(by_hand.browser_key)
    openapi = awaited.asks(by_hand.openapi)


class AsyncStoreMethods:
    """What is asked of one store."""

    connection: awaited.AsyncConnection

    name: str

    inject = awaited.store_asks(ask.inject)
    delete_node = awaited.store_asks(ask.delete_node)
    delete_edge = awaited.store_asks(ask.delete_edge)
    traverse = awaited.store_asks(ask.traverse)
    graph = awaited.store_asks(ask.graph)
    timeline = awaited.store_asks(ask.timeline)
    settings = awaited.store_asks(ask.settings)
    update_settings = awaited.store_asks(by_hand.update_settings)
    move = awaited.store_asks(ask.move)
    repair = awaited.store_asks(ask.repair)
    stats = awaited.store_asks(ask.stats)
    links = awaited.store_asks(ask.links)
    nodes = awaited.store_pages(by_hand.nodes)
    node = awaited.store_asks(ask.node)
    get_nodes = awaited.store_asks(ask.get_nodes)
    count = awaited.store_asks(ask.count)
    delete_nodes = awaited.store_asks(ask.delete_nodes)
    describe_schema = awaited.store_asks(ask.describe_schema)
    list_tags = awaited.store_asks(ask.list_tags)
    outgoing = awaited.store_asks(ask.outgoing)
    incoming = awaited.store_asks(ask.incoming)
    put_node = awaited.store_asks(by_hand.put_node)
    put_subgraph = awaited.store_asks(ask.put_subgraph)
    retire = awaited.store_asks(ask.retire)
    retire_edge = awaited.store_asks(ask.retire_edge)
    merge = awaited.store_asks(ask.merge)
    unmerge = awaited.store_asks(ask.unmerge)
    edge = awaited.store_asks(ask.edge)
    delete_edge_by_id = awaited.store_asks(ask.delete_edge_by_id)
    history = awaited.store_asks(ask.history)
    revert = awaited.store_asks(ask.revert)
    changes = awaited.store_asks(ask.changes)
    restore = awaited.store_asks(ask.restore)
    prune_history = awaited.store_asks(ask.prune_history)
    backup = awaited.store_asks(ask.backup)
    reindex = awaited.store_asks(ask.reindex)
    search = awaited.store_asks(ask.search)
    search_batch = awaited.store_asks(by_hand.search_batch)
    context = awaited.store_asks(ask.context)
    store_memory = awaited.store_asks(ask.store_memory)
    store_memories = awaited.store_asks(ask.store_memories)
    memories = awaited.store_asks(ask.memories)
    memory = awaited.store_asks(ask.memory)
    whole_memory = awaited.store_asks(ask.whole_memory)
    update_memory = awaited.store_asks(ask.update_memory)
    delete_memory = awaited.store_asks(ask.delete_memory)
    delete_memories = awaited.store_asks(ask.delete_memories)
    recall = awaited.store_asks(ask.recall)
    retain = awaited.store_asks(ask.retain)
    retain_batch = awaited.store_asks(ask.retain_batch)
    forget = awaited.store_asks(ask.forget)
    consolidate = awaited.store_asks(ask.consolidate)
    consolidations = awaited.store_asks(ask.consolidations)
    undo_consolidation = awaited.store_asks(ask.undo_consolidation)
    prune_memories = awaited.store_asks(ask.prune_memories)
    reflect = awaited.store_asks(ask.reflect)
    extract_memories = awaited.store_asks(ask.extract_memories)
    create_entity = awaited.store_asks(ask.create_entity)
    create_entities = awaited.store_asks(ask.create_entities)
    entities = awaited.store_asks(ask.entities)
    entity = awaited.store_asks(ask.entity)
    update_entity = awaited.store_asks(ask.update_entity)
    delete_entity = awaited.store_asks(ask.delete_entity)
    delete_entities = awaited.store_asks(ask.delete_entities)
    entity_graph = awaited.store_asks(ask.entity_graph)
    merge_entities = awaited.store_asks(ask.merge_entities)
    entity_memories = awaited.store_asks(ask.entity_memories)
    relations = awaited.store_asks(ask.relations)
    relate = awaited.store_asks(ask.relate)
    create_relations = awaited.store_asks(ask.create_relations)
    delete_relation = awaited.store_asks(ask.delete_relation)
    delete_relations = awaited.store_asks(ask.delete_relations)
    memory_stats = awaited.store_asks(ask.memory_stats)
    memory_growth = awaited.store_asks(ask.memory_growth)
    memory_types = awaited.store_asks(ask.memory_types)
    memory_tags = awaited.store_asks(ask.memory_tags)
    memory_confidence = awaited.store_asks(ask.memory_confidence)
    entity_history = awaited.store_asks(by_hand.entity_history)
    children = awaited.store_asks(by_hand.children)
    descendants = awaited.store_asks(by_hand.descendants)
    ancestors = awaited.store_asks(by_hand.ancestors)
    cypher = awaited.store_asks(by_hand.cypher)
    cypher_rows = awaited.store_streams(by_hand.cypher_rows)
    import_ = awaited.store_asks(by_hand.import_)
    export = awaited.store_streams(by_hand.export)
    events = awaited.store_listens(by_hand.store_events)
