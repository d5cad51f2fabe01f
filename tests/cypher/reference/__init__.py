"""Small reference interpreter of openCypher, for comparison with the engines.

It shares no code with the product. `tree` defines statements, `text` renders them and `parser` reads them. `values`
implements three-valued logic and ordering, `functions` the functions, and `interpreter` runs statements.
"""
