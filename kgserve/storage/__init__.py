"""Storage: the journal, current rows and the layout of a data folder."""
