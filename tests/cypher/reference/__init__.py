"""A small reference interpreter of openCypher, to compare the engines' answers with.

It shares no code with the product. `tree` has the statements, `text` renders and `parser` reads them, `values` has
the values with three-valued logic and ordering, `functions` the functions, and `interpreter` runs whole statements.
"""
