"""Other shapes of the exchange format: streaming converters between its lines and files of other kinds."""
