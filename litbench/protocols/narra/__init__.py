"""NARRA-Gym: interactive stories for a simulated reader, turn by turn."""
