"""What a rater is: its interface, its entry in a config, templates, how answers are read."""
