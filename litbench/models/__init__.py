"""Raters that are trained: surface features and Bradley-Terry reward models."""
