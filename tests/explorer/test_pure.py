"""Modules that need no page, in the same browser: links, model, clocks, labels, layout, renderer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.explorer.looking import ExplorerBrowser
from tests.server.http.serving import RunningServer


@pytest.fixture(scope="module")
def page(browser: Browser, served: RunningServer) -> Iterator[Page]:
    looking = ExplorerBrowser(browser, served.url)
    yield looking.at("docs")
    looking.close()


def run(page: Page, module: str, script: str) -> Any:
    """Return the result of a script; the module is available as ``m``."""
    return page.evaluate(f"async () => {{ const m = await import('/explorer/{module}'); {script} }}")


@pytest.mark.parametrize(
    "fragment",
    [
        "#/",
        "#/books",
        "#/books?ids=a,b&as_of=57&valid_at=2020-01-01&q=two%20words&node=a&view=table",
        "#/books?ids=a%252Cb,%25E2%2582%25AC%252F",
        "#/a.b-c?start=n1&depth=2",
        "#/a?ids=a,b&places=-12_40,0_7&pins=a.b%252Cc.-1_2&hidden=x%252Fy&camera=-1.5_20_0.75&looks=book.3s",
        "#/a?more=2&compare=3-8&edge=%5B%22a%22%2C%22R%22%2C%22b%22%5D&view=memories&tab=entities&entity=x&filter=q%3Dt",
        "#/a?hide_type=a%2Cb&hide_type=&hide_relation=R",
    ],
)
def test_a_link_is_read_and_written_the_same(page: Page, fragment: str) -> None:
    script = f"return m.format((await import('/explorer/link.js')).parse({fragment!r}));"
    same = run(page, "address.js", script)
    assert same.count("&") == fragment.count("&")
    assert run(page, "link.js", f"return m.parse({same!r});") == run(page, "link.js", f"return m.parse({fragment!r});")


def test_ids_with_commas_and_slashes_come_back(page: Page) -> None:
    script = """
      const { format } = await import('/explorer/address.js');
      return m.parse(format({store: 's', ids: ['a,b', 'c/d?e&f=g', '%2C', 'é\\u0000']})).ids;
    """
    assert run(page, "link.js", script) == ["a,b", "c/d?e&f=g", "%2C", "é\0"]
    wrong = run(page, "link.js", "return m.parse('#/x?depth=99&as_of=-1&edge=%5B1');")
    assert (wrong["depth"], wrong["asOf"], wrong["edge"]) == (5, None, "")


def test_nothing_is_requested_for_a_store_that_was_left(page: Page) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    run(page, "load.js", "await m.refreshAbout(); await m.refreshTimeline();")
    assert not [url for url in requested if "/api/memory/" in url]


def test_lives_and_validity_are_comparisons(page: Page) -> None:
    script = """
      const row = {lives: [[7, null], [2, 5]], validFrom: 100, validTo: 200};
      const commits = [[1, 3], [3, 6], [3, 8], [7, null], [1, 6]];
      return [[1, 2, 4, 5, 6, 7, null].map((at) => m.stateAt(row, at)),
        [99, 100, 199, 200].map((at) => m.isTrueAt(row, at)),
        ...commits.map(([before, after]) => m.difference(row, before, after)),
        m.validRange([row, {validFrom: null, validTo: null, lives: null}]), m.validRange([])];
    """
    assert run(page, "graph/time.js", script) == [
        [-1, 1, 1, -1, -1, 0, 0],
        [False, True, True, False],
        *("come", "gone", "changed", "same", "never"),
        [100, 200],
        None,
    ]


def test_the_model_takes_columns_expands_collapses_and_finds_ways(page: Page) -> None:
    script = """
      const g = new m.Graph();
      const answer = (ids, edges) => ({types: ['t'], relation_types: ['R'], left_out: [[0, 9]],
        nodes: {id: ids, type: ids.map(() => 0)},
        edges: {from: edges.map((e) => e[0]), to: edges.map((e) => e[1]), type: edges.map(() => 0)}});
      g.take(answer(['a'], []));
      g.take(answer(['a', 'b', 'c'], [[0, 1], [0, 2]]), 'a');
      g.take(answer(['b', 'd', 'c'], [[0, 1], [0, 2]]), 'b');
      const before = [g.nodes.size, g.edges.size, g.broughtOnlyBy('a').sort(), g.path('d', 'c'),
        g.nodes.get('a').leftOut];
      const gone = g.collapse('a');
      return [...before, gone, [...g.nodes.keys()], g.edges.size, g.path('a', 'zzz')];
    """
    assert run(page, "graph/model.js", script) == [4, 4, ["b", "c"], ["d", "b", "c"], 9, 2, ["a"], 0, []]


def test_labels_are_short_and_whole(page: Page) -> None:
    script = """
      const of = (row) => m.labelOf({attributes: {}, content: '', id: 'id', ...row});
      return [of({}), of({content: 'c'}), of({content: 'c', attributes: {title: 'T'}}),
        of({summary: 's', attributes: {name: 'N'}}),
        of({content: '😀'.repeat(50)}), of({content: ' a\\n b '}), of({summary: '\\u202egpj\\u2069.exe'})];
    """
    found = run(page, "graph/labels.js", script)
    assert found[:4] == ["id", "c", "T", "s"]
    assert found[4].endswith("😀…")
    assert found[5:] == ["a b", "gpj.exe"], "no label reorders the texts around it"


def test_the_nearest_node_and_the_one_in_a_direction(page: Page) -> None:
    script = """
      const nodes = [{key: 'a', x: 0, y: 0}, {key: 'b', x: 100, y: 5}, {key: 'c', x: 30, y: 80}];
      const places = new m.Places(nodes);
      return [places.at(3, 3, 10)?.key, places.at(50, 50, 10) === null, places.at(99, 30, 40)?.key,
        ...['right', 'down', 'left', 'up'].map((way) => m.towards(nodes[0], nodes.slice(1), way)?.key ?? null)];
    """
    assert run(page, "graph/pick.js", script) == ["a", True, "b", "b", "c", None, None]


def test_the_renderer_puts_a_types_colour_where_a_node_is(page: Page) -> None:
    script = """
      const {LIGHT, DARK} = await import('/explorer/graph/colours.js');
      const node = (key, x, y) => ({key, x, y, degree: 3, label: '', store: '', confidence: null});
      const [a, b] = [node('a', -30, 0), node('b', 30, 0)];
      const canvas = new OffscreenCanvas(1, 1);
      canvas.getContext('2d', {alpha: false, willReadFrequently: true});
      const r = new m.Renderer(canvas);
      const nodes = [{node: a, radius: 8, colour: 0, shape: 'circle', manner: 'plain', badge: '', towards: []},
        {node: b, radius: 8, colour: 1, shape: 'square', manner: 'plain', badge: '', towards: []}];
      const scene = {nodes, edges: [{from: nodes[0], to: nodes[1], manner: 'plain', width: 1, type: 'R'}], sectors: [],
        selected: new Set(), focus: '', labelled: [], pulses: new Map(), fade: false};
      const two = (value) => value.toString(16).padStart(2, '0');
      const hex = (x, y) => '#' + [...r.context.getImageData(x, y, 1, 1).data.slice(0, 3)].map(two).join('');
      const seen = [];
      for (const dark of [false, true]) {
        r.fit(200, 100, 1, dark);
        r.draw(scene, {x: 0, y: 0, scale: 1});
        const types = dark ? DARK : LIGHT;
        seen.push(hex(70, 50) === types[0], hex(130, 50) === types[1], hex(5, 5), hex(100, 50) !== hex(5, 5));
      }
      r.draw(scene, {x: 0, y: 0, scale: 2});
      seen.push(hex(40, 50) === DARK[0]);
      return seen;
    """
    assert run(page, "graph/renderer.js", script) == [True, True, "#ffffff", True, True, True, "#14171a", True, True]


def test_a_type_has_one_look_whatever_other_types_there_are(page: Page) -> None:
    script = """
      const types = ['person', 'team', 'requirement', 'fact', 'book', 'a b,c.d'];
      const first = new m.Looks(), second = new m.Looks();
      const seen = types.map((type) => Object.values(first.of(type)).join(' '));
      first.choose('a b,c.d', {colour: 7, shape: 'square'});
      first.choose('book', {colour: 2});
      second.parse(first.format());
      return [seen, JSON.stringify(second.of('a b,c.d')), second.of('book').colour, second.chosen.size];
    """
    looks = ["0 triangle", "3 triangle", "0 square", "1 hexagon", "3 square", "2 square"]
    chosen = '{"colour":7,"shape":"square"}'
    assert run(page, "graph/colours.js", script) == [looks, chosen, 2, 2], "addresses and pictures rely on these looks"


def test_lines_end_at_the_border_and_lie_apart(page: Page) -> None:
    script = """
      const distances = [[1, 0], [0, 1], [Math.SQRT1_2, Math.SQRT1_2]].map(([x, y]) =>
        ['circle', 'square', 'diamond'].map((shape) => Math.round(100 * m.borderDistance(shape, x, y))));
      const [a, b] = [{node: {key: 'a'}}, {node: {key: 'b'}}];
      const edges = [{from: a, to: b}, {from: b, to: a}, {from: a, to: b}, {from: a, to: a}];
      const bends = m.bendsOf(edges);
      const tips = [];
      const heads = {moveTo: (x, y) => tips.push(Math.round(x), Math.round(y)), lineTo() {}};
      const lines = {moveTo() {}, lineTo() {}, quadraticCurveTo() {}, bezierCurveTo() {}};
      const mark = (x, shape) => ({x, y: 0, radius: 10, shape});
      m.addEdge(lines, heads, mark(0, 'circle'), mark(100, 'circle'), 0, 5);
      m.addEdge(lines, heads, mark(0, 'circle'), mark(100, 'square'), 0, 5);
      const [[x, y]] = m.addEdge(lines, null, mark(0, 'circle'), mark(100, 'circle'), 1, 5);
      const [[u, v]] = m.addEdge(lines, null, mark(100, 'circle'), mark(0, 'circle'), 1, 5);
      return [distances, edges.map((edge) => bends.get(edge) ?? null), tips, x === 50 && u === 50 && y === -v && y > 5];
    """
    distances = [[100, 90, 120], [100, 90, 120], [100, 127, 85]]
    assert run(page, "graph/curves.js", script) == [distances, [-1, 0, 1, None], [89, 0, 90, 0], True]


def test_leaves_of_a_hub_stand_in_a_fan_away_from_its_other_neighbours(page: Page) -> None:
    script = """
      const rest = {y: 0, placed: true, pinned: false, radius: 8};
      const node = (index, x) => ({index, x, type: index % 2, neighbours: [], ...rest});
      const [hub, other, next] = [node(0, 0), node(1, -100), node(2, -200)];
      const leaves = Array.from({length: 60}, (_, i) => node(i + 3, 0));
      const join = (one, two) => { one.neighbours.push(two); two.neighbours.push(one); };
      [other, ...leaves].forEach((one) => join(hub, one));
      join(other, next);
      leaves[0].pinned = true;
      const fans = m.findFans([hub, other, next, ...leaves]);
      const fan = fans.get(hub);
      m.placeFan(fan);
      const inside = fan.sectors.flatMap((sector) => sector.leaves);
      const far = (one, two) => Math.hypot(one.x - two.x, one.y - two.y);
      const apart = inside.every((one, i) => inside.slice(i + 1).every((two) => far(one, two) > 11));
      return [fans.size, inside.length, fan.sectors.length, apart,
        inside.every(({x, y}) => Math.abs(Math.atan2(y, x)) < 2.2 && Math.hypot(x, y) < fan.outer)];
    """
    assert run(page, "graph/fans.js", script) == [1, 59, 2, True, True]


def test_rows_in_sight_and_the_one_that_is_held(page: Page) -> None:
    script = """
      const of = (...given) => { const all = m.inSight(...given); return [all[0], all.at(-1), all.length]; };
      return [of(0, 10, -1, 100), of(50, 60, 3, 100), of(90, 120, 99, 100), of(20, 30, 90, 100),
        m.inSight(0, 9, -1, 0)];
    """
    told = [[0, 21, 22], [3, 71, 35], [78, 99, 22], [8, 90, 35], []]
    assert run(page, "panel/rows.js", script) == told


def test_a_statement_in_pieces_brackets_and_completions(page: Page) -> None:
    script = """
      const text = "MATCH (a {n: 'x)'}) // (\\nRETURN $p, 1.5";
      const all = m.pieces(text, new Set(['MATCH', 'RETURN']));
      const words = [{label: 'MATCH', type: 'keyword'}, {label: 'max', type: 'function'}];
      const begun = (...given) => { const found = m.completions(...given); return [found.from, found.words.length]; };
      return [all.map((one) => one.text).join('') === text,
        all.filter((one) => one.kind && one.kind !== 'bracket').map((one) => one.kind),
        m.pairAt(all, 6), m.pairAt(all, 19), m.pairAt(all, 3),
        begun('RETURN ma', 9, words, false), begun('a ', 2, words, false), begun('a ', 2, words, true),
        m.placeOf('ab\\ncd', 2, 2), m.placeOf('ab\\ncd', 9, 99)];
    """
    kinds = ["keyword", "property", "string", "comment", "keyword", "number", "number"]
    told = [True, kinds, [6, 18], [6, 18], [], [7, 2], [2, 0], [2, 2], 4, 5]
    assert run(page, "panel/editor.js", script) == told


def test_names_of_a_store_are_coloured_and_completed(page: Page) -> None:
    script = """
      const statement = "MATCH (t:task|`two words` {due: 1})-[:BLOCKS|AFTER*1..2]->(b) WHERE b:task AND "
        + "toUpper(b.name) RETURN [x IN nodes(p) WHERE x:task | x.id], EXISTS { (b) WHERE b:done }";
      const named = ['label', 'relation', 'property', 'function'];
      const kinds = m.pieces(statement, new Set(['MATCH', 'WHERE', 'AND', 'RETURN', 'IN', 'EXISTS']));
      const { wordsOf } = await import('/explorer/panel/cypher.js');
      const words = wordsOf({
        keywords: ['MATCH', 'ON'], functions: ['toUpper', 'duration.between'], procedures: ['db.labels'],
        labels: { task: ['state', 'due date'], 'two words': ['stature'] },
        relation_types: { BLOCKS: ['since'], OWNS: [] },
        node_properties: ['id', 'since'], relation_properties: ['weight'],
      });
      const begun = ['MATCH (n:', 'MATCH (n:task|tw', 'MATCH (n:`tw', 'MATCH ()-[:', 'MATCH ()-[r:OWNS|b',
        'MATCH (n) WHERE n:ta', 'MATCH (t:task) WHERE t.', 'MATCH (t:task {st', 'MATCH (t) WHERE t.st',
        'RETURN duration.', 'RETURN duration.b',
        'CALL db.', "MATCH (n {type: 'tw", 'RETURN o', 'RETURN 1 // o'];
      const offers = begun.map((one) => m.completions(one, one.length, words, false).words.map(({ label }) => label));
      return [kinds.filter((one) => named.includes(one.kind)).map((one) => [one.kind, one.text]), offers];
    """
    kinds = [
        *(["label", "task"], ["label", "`two words`"], ["property", "due"]),
        *(["relation", "BLOCKS"], ["relation", "AFTER"], ["label", "task"]),
        *(["function", "toUpper"], ["property", "name"], ["function", "nodes"], ["label", "task"], ["property", "id"]),
        ["label", "done"],
    ]
    offered = [
        ["task", "`two words`", "Entity", "Elsewhere"],
        *(["`two words`"], ["`two words`"]),
        *(["BLOCKS", "OWNS", "RELATES_TO", "LINKS_TO"], ["BLOCKS"]),
        ["task"],
        ["state", "`due date`", "id", "since", "weight"],
        *(["state"], ["state", "stature"]),
        *(["duration.between"], ["duration.between"], ["db.labels"], ["two words"], ["ON"], []),
    ]
    assert run(page, "panel/editor.js", script) == [kinds, offered]


def test_what_the_server_tells_of_itself_is_read(page: Page) -> None:
    text = """# HELP a
a_bucket{le="0.1",route="/x/{y}"} 3.0
a_bucket{le="0.5",route="/x/{y}"} 9.0
a_bucket{le="+Inf",route="q\\"\\n"} 10.0
b 2.5
"""
    script = f"""
      const all = m.readMetrics({json.dumps(text)});
      const buckets = all.filter((one) => one.name === 'a_bucket');
      return [all.length, all[0].labels.route, all[2].labels.route, all[3].value,
        m.quantile(buckets, 0.5), m.quantile(buckets, 0.95) === Infinity, m.quantile([], 0.5)];
    """
    assert run(page, "panel/health.js", script) == [4, "/x/{y}", 'q"\n', 2.5, 0.5, True, None]


def test_an_event_of_the_stream_is_read(page: Page) -> None:
    block = 'id: 1-0\nevent: node_created\ndata: {"store": "s", "id": "a: b"}'
    script = f"return [m.readEvent({json.dumps(block)}), m.readEvent(': still here')];"
    told = {"id": "1-0", "event": "node_created", "data": {"store": "s", "id": "a: b"}}
    assert run(page, "events.js", script) == [told, None]


@pytest.mark.parametrize(
    ("text", "rows", "lines"),
    [
        ("a,b\n1,2\n", [["a", "b"], ["1", "2"]], [1, 2]),
        ("\ufeffa;b\r\n\r\n1;\r\n", [["a", "b"], ["1", ""]], [1, 3]),
        ('a,b\n"x ""y""\nz",2\n3,4', [["a", "b"], ['x "y"\nz', "2"], ["3", "4"]], [1, 2, 4]),
        ("a\tb\n1\t", [["a", "b"], ["1", ""]], [1, 2]),
        ("", [], []),
    ],
)
def test_csv_is_read_as_spreadsheets_write_it(page: Page, text: str, rows: list[list[str]], lines: list[int]) -> None:
    read = run(page, "entry/csv.js", f"return m.readCsv({json.dumps(text)}, m.guessDelimiter({json.dumps(text)}));")
    assert (read["rows"], read["lines"]) == (rows, lines)


def test_csv_columns_are_guessed_and_wrong_cells_named(page: Page) -> None:
    script = """
      const table = m.readCsv('id,name,phone,zip,age,ok,when\\n1,A,+49,007,3,yes,x\\n,B,1,1,4,no,2020-01-02', ',');
      const mapping = m.guessMapping(table);
      const fault = m.mappingFault(mapping);
      mapping.fixed = 'person';
      mapping.targets[6] = 'valid_from';
      const twice = m.mappingFault({...mapping, targets: mapping.targets.map(() => 'id')});
      const edges = m.guessMapping(m.readCsv('source,target,type\\na,b,C\\n', ','));
      return [mapping.targets.slice(0, 6), fault, twice, m.convertCsv(table, mapping).faults, edges];
    """
    targets, fault, twice, faults, edges = run(page, "entry/csv.js", script)
    assert targets == ["id", "summary", "text", "text", "number", "boolean"]
    assert "Type of all rows" in fault
    assert "Two columns become “Id”" in twice
    assert faults == [
        {"line": 2, "message": "when is “x”, which is not a date"},
        {"line": 3, "message": "id is empty"},
    ]
    assert (edges["kind"], edges["targets"]) == ("edge", ["from", "to", "relation_type"])


def test_a_quoted_text_without_end_is_refused(page: Page) -> None:
    script = "try { m.readCsv('a,b\\n\"x,1\\n', ','); } catch (error) { return error.message; }"
    assert run(page, "entry/csv.js", script) == "Line 2: A quoted text has no end."


def test_graphml_is_looked_at_as_a_whole_or_from_its_beginning(page: Page) -> None:
    text = """<?xml version="1.0"?><!-- <node> --><graphml><key id='d0' for="node" attr.name="label"/><g:graph>
      <node id="a &amp; b"><data key="d0"><![CDATA[<First>]]> &#233;</data></node>
      <node id="c"><data key="title">T</data></node>
      <edge source="a &amp; b" target="c"><data key="type">KNOWS</data></edge></g:graph></graphml>"""
    script = f"""
      const text = {json.dumps(text)};
      const said = (...given) => {{ try {{ return m.readGraphml(...given); }} catch {{ return null; }} }};
      return [said(text, true), said(text.slice(0, 150), false), said(text.slice(0, -3), true),
        said('<html></html>', true), said('<graphml><a></b></graphml>', true)];
    """
    whole, beginning, *wrong = run(page, "entry/graphml.js", script)
    node = {"id": "a & b", "type": "node", "summary": "", "content": "<First> é"}
    assert whole["nodes"] == [node, {"id": "c", "type": "node", "summary": "T", "content": ""}]
    assert whole["edges"] == [{"from": "a & b", "to": "c", "relation_type": "KNOWS"}]
    assert beginning == {"nodes": [], "edges": []}
    assert wrong == [None, None, None]
