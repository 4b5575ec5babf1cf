"""Rewards for reinforcement learning."""
