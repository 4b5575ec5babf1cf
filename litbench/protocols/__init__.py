"""Writing benchmarks: what a writer is asked, and how the text is rated."""
