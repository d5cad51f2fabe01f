"""Text analysis: tokens, stems and languages of texts and queries, and textual comparison."""
