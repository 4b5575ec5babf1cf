"""Tables and their schemas; any file to stories and pairs."""
